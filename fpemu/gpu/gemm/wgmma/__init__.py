"""Schemes on the wgmma of Hopper: of fp16 words, with corrections in int8, and by Strassen's algorithm."""
