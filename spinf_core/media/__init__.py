"""The place for the decoding of images, audio and frames; nothing is here as yet."""
