"""A ref becomes a commit, or one clear line."""

from __future__ import annotations

import json

import pytest

from spinf_core import SetupError

from .conftest import COMMIT, OTHER, TAG_OBJECT, FakeGitHub, archive, jsoned, pack


def ids(repository) -> list[str]:
    return [f"{each.id}@{each.version}" for each in repository.packs]


def refused(github: FakeGitHub, location: str, **how) -> str:
    with pytest.raises(SetupError) as caught:
        github.fetch(location, **how)
    (line,) = str(caught.value).splitlines()
    return line


def test_a_tag(github):
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]


def test_an_annotated_tag_is_followed_to_its_commit(github):
    github.ref("tags/v2", TAG_OBJECT, "tag")
    github.api.answers[f"/repos/o/r/git/tags/{TAG_OBJECT}"] = jsoned({"object": {"type": "commit", "sha": OTHER}})
    github.serve(archive({"p.json": b'{"pack": 1'}), commit=OTHER)
    github.serve(commit=OTHER)
    assert ids(github.fetch("o/r@v2")) == ["demo/small@0.1.0"]
    assert f"/repos/o/r/tarball/{OTHER}" in [path for path, _ in github.api.asked]


def test_a_full_commit_hash_is_not_looked_up(github):
    github.fetch(f"o/r@{COMMIT}")
    assert [path for path, _ in github.api.asked] == [f"/repos/o/r/tarball/{COMMIT}"]


def test_a_part_of_a_hash_is_told_from_a_name(github):
    assert refused(github, "o/r@1111111").endswith(
        "has neither a tag nor a branch 1111111; a commit is named by all its 40 digits"
    )


def test_a_branch_with_slashes_and_a_path(github):
    """https://github.com/andreoliwa/nitpick/issues/502"""
    github.ref("heads/feature/x/y")
    assert ids(github.fetch("o/r@feature/x/y#packs")) == ["demo/small@0.1.0"]
    assert ids(github.fetch("o/r@feature/x/y#packs/small.json")) == ["demo/small@0.1.0"]


def test_a_path_that_is_not_there_is_named(github):
    assert refused(github, "o/r@v1#elsewhere") == "github:o/r@v1#elsewhere: has no 'elsewhere'"
    assert refused(github, "o/r@v1#../..") == "github:o/r@v1#../..: has no '../..'"


def test_a_branch_is_resolved_each_time_with_a_warning(github):
    github.ref("heads/main")
    github.fetch("o/r@main")
    github.ref("heads/main", OTHER)
    github.serve(archive({"a.json": json.dumps(pack("0.2.0")).encode()}), commit=OTHER)
    assert ids(github.fetch("o/r@main")) == ["demo/small@0.2.0"]
    assert sum(note.startswith("warning: packs github:o/r@main: branch main is at ") for note in github.notes) == 2


def test_no_ref_is_the_default_branch(github):
    github.ref("heads/main")
    assert ids(github.fetch("o/r")) == ["demo/small@0.1.0"]
    assert any("branch main" in note for note in github.notes)


def test_a_name_that_is_a_tag_and_a_branch_is_refused_naming_both(github):
    """https://github.com/falconry/falcon/issues/2138"""
    github.ref("heads/v1", OTHER)
    line = refused(github, "o/r@v1")
    assert "is a tag (111111111111) and a branch (222222222222)" in line
    assert "@refs/tags/v1" in line
    assert "@refs/heads/v1" in line
    github.serve(commit=OTHER)
    assert ids(github.fetch("o/r@refs/heads/v1")) == ids(github.fetch("o/r@refs/tags/v1")) == ["demo/small@0.1.0"]


def test_a_ref_that_is_only_the_beginning_of_another_is_not_that_one(github):
    """The API once answered a prefix with a list of what begins with it."""
    github.api.answers["/repos/o/r/git/ref/heads/feature"] = jsoned([{"ref": "refs/heads/feature/x"}])
    assert "has neither a tag nor a branch feature" in refused(github, "o/r@feature")


def test_a_tag_is_remembered_until_refreshed(github):
    github.fetch("o/r@v1")
    github.ref("tags/v1", OTHER)
    github.serve(archive({"a.json": json.dumps(pack("0.2.0")).encode()}), commit=OTHER)
    github.api.asked.clear()
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]
    assert github.api.asked == []
    assert ids(github.fetch("o/r@v1", refresh=True)) == ["demo/small@0.2.0"]
    assert github.notes[-2] == "packs github:o/r@v1: tag v1 has moved from 111111111111 to 222222222222"
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.2.0"]


@pytest.mark.parametrize("location", ["", "o", "o/", "/r", "o/r/s", "../r", "o/..", "o/r@", "o r/s"])
def test_what_is_no_location_is_refused(github, location):
    assert "expected github:OWNER/REPO" in refused(github, location)
    assert github.api.asked == []
