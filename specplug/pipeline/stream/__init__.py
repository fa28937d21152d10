"""The draft stage's step in an engine's stream, for proposers on the host: three launches, and no wait for the device.

    pack           kernel: the rows' new tokens and counts, from the device to pinned memory
    host function  the proposer's step, on a thread of the driver
    unpack         kernel: the drafts, from pinned memory to the engine's draft buffers

`buffers` holds a step's pinned memory, `kernels` the two kernels in Triton, `host_kernels` the same compiled for a CPU,
which `buffers` documents and chooses.  Only `kernels` imports Triton, and nothing imports it before it is used.
"""
