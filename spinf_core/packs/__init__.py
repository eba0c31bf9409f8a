"""Prompt packs: questions, how a content is presented to them, and how answers become category scores and a decision.

A pack is data, never code. The way of one: `loading` makes a `catalog` at start from repositories (`repository`) that sources
(`sources`, `folder`) bring; each file is checked whole (`validate`) and read (`file`); a request's entries are looked up in
the catalog (`request`, `contexts`), their questions run like any others, and `evaluate`, with `microlayer`, turns the
answers into the result.
Imports `protocol`, attrs, cattrs and the standard library; neither torch nor numpy nor the server.
"""
