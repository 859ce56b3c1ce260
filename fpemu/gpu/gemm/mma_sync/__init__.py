"""Every split scheme on mma.sync: one kernel with the split in its loads, and one for any order."""
