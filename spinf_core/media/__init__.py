"""Decoding of images, audio and frames, and the interface of embedders."""
