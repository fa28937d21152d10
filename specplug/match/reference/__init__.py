"""Plain Python references of the match index, one module per operation; property tests compare kernels with them."""
