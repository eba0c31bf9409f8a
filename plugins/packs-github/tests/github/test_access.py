"""Private repositories, tokens, limits and time-outs; see robinraju/release-downloader #333."""

from __future__ import annotations

import time

import pytest

from spinf_core import SetupError

from .conftest import COMMIT, archive, jsoned
from .test_refs import ids, refused


def test_the_token_goes_to_the_api_and_not_where_it_redirects(github):
    assert ids(github.fetch("o/r@v1", token="secret")) == ["demo/small@0.1.0"]
    assert {token for _, token in github.api.asked} == {"Bearer secret"}
    assert [token for _, token in github.host.asked] == [None]


def test_without_a_token_none_is_sent(github):
    github.fetch("o/r@v1")
    assert {token for _, token in (*github.api.asked, *github.host.asked)} == {None}


def private(github):
    """Hide the repository from everybody without the token."""
    hidden = jsoned({"message": "Not Found"}, 404)
    for path in list(github.api.answers):
        answer = github.api.answers[path]
        github.api.answers[path] = lambda headers, a=answer: a if headers.get("Authorization") == "Bearer secret" else hidden


def test_a_private_repository_asks_for_a_token(github):
    private(github)
    assert refused(github, "o/r@v1") == (
        "packs github:o/r@v1: there is no repository o/r, or it is private; set GITHUB_TOKEN to read it"
    )


def test_a_private_repository_opens_to_its_token(github):
    private(github)
    assert ids(github.fetch("o/r@v1", token="secret")) == ["demo/small@0.1.0"]


def test_a_token_that_may_not_read_it_is_named(github):
    private(github)
    assert refused(github, "o/r@v1", token="other").endswith("or GITHUB_TOKEN may not read it")


def test_a_token_that_is_not_accepted_is_named(github):
    github.api.answers["/repos/o/r/git/ref/tags/v1"] = jsoned({"message": "Bad credentials"}, 401)
    assert "GitHub does not accept GITHUB_TOKEN" in refused(github, "o/r@v1", token="expired")


def test_a_rate_limit_says_until_when_and_what_raises_it(github):
    reset = int(time.time()) + 600
    limit = jsoned({"message": "API rate limit exceeded"}, 403, x_ratelimit_remaining="0", x_ratelimit_reset=str(reset))
    github.api.answers["/repos/o/r/git/ref/tags/v1"] = limit
    until = time.strftime("%H:%M", time.localtime(reset))
    expected = f"packs github:o/r@v1: GitHub's rate limit is reached until {until}"
    assert refused(github, "o/r@v1") == f"{expected}; set GITHUB_TOKEN for a higher one"
    assert refused(github, "o/r@v1", token="secret") == expected


def test_a_refusal_that_is_no_rate_limit_is_not_called_one(github):
    github.api.answers["/repos/o/r/git/ref/tags/v1"] = jsoned({"message": "Resource not accessible"}, 403)
    assert "refuses access (403)" in refused(github, "o/r@v1")


def test_a_commit_that_is_not_there_is_named(github):
    assert refused(github, f"o/r@{'4' * 40}").endswith(f"has no commit {'4' * 40}")


def test_a_time_out_is_one_line(github):
    github.api.gate.clear()
    assert refused(github, "o/r@v1", timeout=0.1) == (
        "packs github:o/r@v1: 127.0.0.1 did not answer within 0.1 seconds; try again later"
    )


def test_a_server_that_is_not_there_is_one_line(github):
    github.api.stop()
    assert "127.0.0.1 cannot be reached" in refused(github, "o/r@v1")


@pytest.mark.parametrize("status", [500, 503])
def test_a_failing_server_is_one_line(github, status):
    github.api.answers[f"/repos/o/r/tarball/{COMMIT}"] = (status, {}, b"")
    assert f"answered with status {status}" in refused(github, "o/r@v1")


def test_an_endless_redirect_ends(github):
    github.host.answers[f"/o/r/{COMMIT}"] = (302, {"Location": f"{github.host.url}/o/r/{COMMIT}"}, b"")
    assert "redirects more than 5 times" in refused(github, "o/r@v1")


def test_a_renamed_repository_is_found(github):
    github.api.answers["/repositories/7"] = github.api.answers.pop("/repos/o/r/git/ref/tags/v1")
    github.api.answers["/repos/o/r/git/ref/tags/v1"] = (301, {"Location": f"{github.api.url}/repositories/7"}, b"")
    assert ids(github.fetch("o/r@v1")) == ["demo/small@0.1.0"]


def test_problems_of_a_pack_are_listed_like_those_of_a_folder(github):
    github.serve(archive({"p.json": b'{"pack": "Bad", "scoring": {}}'}))
    with pytest.raises(SetupError) as caught:
        github.fetch("o/r@v1")
    lines = str(caught.value).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("github:o/r@v1: p.json: ") for line in lines)
