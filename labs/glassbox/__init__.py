"""The lab of Glassbox: one next-token prediction, small enough to check by hand."""
