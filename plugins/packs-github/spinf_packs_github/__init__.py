"""Prompt packs out of GitHub repositories: a ref becomes a commit, the commit's archive a folder in the cache."""
