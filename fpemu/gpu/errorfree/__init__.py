"""The Ozaki family on the GPU: exact products of slices or residues by the library, sums of our own."""
