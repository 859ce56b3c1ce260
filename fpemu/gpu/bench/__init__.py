"""Speed on the GPU at hand: the vendor's library and the schemes' kernels side by side, error beside speed.

`battery` says what is measured, `contenders` by whom, `timing` how; `running` does it, `record` keeps it, `reading`
makes ratios of it. The papers' figures of speed are drawn from a record, without a GPU.
"""
