"""Runs jobs: packs them into passes, reads scores, caches floors, tests itself and fingerprints what it is."""
