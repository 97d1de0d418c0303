"""Rockchip's toolkit: what the engine and the export to `.rknn` share. Its process has older packages than ours."""
