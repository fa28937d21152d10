"""Plain Python references of the match index, one module per operation; property tests hold the kernels to them."""
