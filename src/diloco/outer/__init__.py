"""The algorithm: small pure pieces a reader can check against the papers. Torch only; no process groups, files or
clocks."""
