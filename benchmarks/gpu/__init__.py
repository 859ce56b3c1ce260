"""``fpemu bench gpu``: the vendor's library and the schemes' kernels side by side, error beside speed.

`groups` and `shapes` list what the figures show, `suite` the cases in order of importance; `products`, `batched`,
`tallskinny`, `applications` and `ceilings` measure one kind of case each, `run` all of them, into a `record`.
The papers' figures of speed are drawn from a record, without a GPU.
"""
