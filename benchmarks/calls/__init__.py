"""Times of whole calls on torch tensors of one GPU, beside PyTorch's calls of cuBLAS: ``python -m benchmarks.calls``.

The command needs an NVIDIA GPU and PyTorch, takes at most 150 s, and writes one JSON object, by default the record that
the figure ``speed/calls`` shows. `sections` lists the measured cases, `timer` times the calls of a case side by side,
and `run` saves the record after every case. The record contains the GPU, the versions and, for each section, a row of
every case: microseconds per call by the name of the call. "about" has the date, the code, the duration, and the power
and clock of every section, and the cases that did not fit into its time limit.

The kernels alone, without the cost of calls, are measured by ``fpemu bench gpu``.
"""
