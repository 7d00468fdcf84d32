"""Names of features, rules, scripts and PII types. Imports no Numba, so kernels and stages both use
it."""
