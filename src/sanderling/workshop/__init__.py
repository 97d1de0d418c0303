"""The workshop: export, optimise, quantise, report, and the pipeline that joins them.

The room is not called `build`, because `sanderling.build` is the function.
"""
