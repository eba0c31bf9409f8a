"""Packs over HTTP, and spinf-client's own calls for them, unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest
import spinf_client
from spinf_client import SpinfClient, SpinfError

from spinf_core.errors import SetupError
from spinf_core.packs.catalog import Catalog

from .conftest import PACK_NAMES, LiveServer, Serve, catalog_of, fixture_pack, loaded_for_packs, toy_pack

TEXTS = ["A red gate in the north wing.", "I will find you.", ""]


@pytest.fixture
def live(serve: Serve, toy_packs: Catalog) -> LiveServer:
    return serve(loaded_for_packs(), packs=toy_packs)


def client_of(server: LiveServer) -> SpinfClient:
    return SpinfClient(api_key="any", base_url=server.url, model="toy", tries=1)


def test_packs_are_listed_with_everything_that_a_call_may_say(live: LiveServer) -> None:
    listed = {entry["id"]: entry for entry in live.client().get("/v1/packs").json()["packs"]}
    assert sorted(listed) == sorted(f"demo/{name}" for name in PACK_NAMES)
    assert listed["demo/support-triage"]["parameters"] == [
        {"id": "brand", "label": "Brand", "description": "The name of the shop.", "required": True, "default": None}
    ]
    entry = listed["demo/moderation"]
    pack = fixture_pack()
    assert entry["contexts"] == [{"id": name, "template": text} for name, text in pack["contexts"].items()]
    assert entry["categories"][0] == {"id": "spam", "label": "Spam", "threshold": 0.75}
    assert entry["decision"] == {
        "mode": "micro_layer",
        "modes": ["max", "per_category", "micro_layer"],
        "fallback": "max",
        "max_threshold": 0.6,
        "critical": ["minors", "self_harm"],
    }
    kept = ("version", "versions", "status", "media", "model", "queries", "prompts")
    assert {name: entry[name] for name in kept} == {
        "version": "0.1.0",
        "versions": ["0.1.0"],
        "status": "available",
        "media": ["text"],
        "model": "toy",
        "queries": len(pack["scoring"]["queries"]),
        "prompts": len(pack["scoring"]["queries"]) + 3,
    }
    members = "id name status version versions description tags media model source parameters contexts categories decision"
    assert list(entry) == [*members.split(), "queries", "prompts"]


def test_a_pack_file_is_given_as_it_is(live: LiveServer) -> None:
    client = live.client()
    assert client.get("/v1/packs/demo/news").json() == toy_pack("news")
    assert client.get("/v1/packs/demo/news", params={"version": "0.1.0"}).json() == toy_pack("news")


@pytest.mark.parametrize(
    ("path", "code"),
    [("demo/none", "unknown_pack"), ("demo", "unknown_pack"), ("demo/news?version=9", "unknown_pack_version")],
)
def test_what_is_not_there_is_404(live: LiveServer, path: str, code: str) -> None:
    response = live.client().get(f"/v1/packs/{path}")
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"], error["param"]) == (404, "not_found", code, None)


def test_models_names_the_enabled_packs(live: LiveServer) -> None:
    (entry,) = live.client().get("/v1/models").json()["models"]
    assert "demo/moderation" in entry["features"]["packs"]


def test_the_newest_available_version_is_the_default(serve: Serve, tmp_path: Path) -> None:
    packs = [toy_pack("news", version=version) for version in ("0.9.0", "0.10.0", "0.10.0-rc1")]
    client = serve(loaded_for_packs(), packs=catalog_of(tmp_path, *packs)).client()
    (entry,) = client.get("/v1/packs").json()["packs"]
    assert (entry["version"], entry["versions"]) == ("0.10.0", ["0.9.0", "0.10.0-rc1", "0.10.0"])
    assert client.get("/v1/packs/demo/news").json()["version"] == "0.10.0"


def test_spinf_client_runs_a_pack_under_its_own_id(live: LiveServer) -> None:
    response = client_of(live).score(
        [spinf_client.text(TEXTS[0])], packs=[spinf_client.pack("demo/moderation", context="forum")]
    )
    found = spinf_client.pack_result(response, "demo/moderation")
    assert (found["context"], found["decision"]["mode"]) == ("forum", "micro_layer")
    assert response["usage"]["packs"]["count"] == 1


@pytest.fixture
def official(serve: Serve, tmp_path: Path) -> LiveServer:
    pack = toy_pack(pack="spinf/moderation")
    return serve(loaded_for_packs(), packs=catalog_of(tmp_path, pack, features__packs_allow_namespace=("spinf",)))


def test_spinf_client_moderates(official: LiveServer) -> None:
    one, two, empty = client_of(official).moderate(TEXTS)
    assert {one.mode, two.mode, empty.mode} == {"micro_layer"}
    assert client_of(official).moderate(TEXTS[0]).categories == one.categories
    assert (one.pack, one.version, one.context) == ("spinf/moderation", "0.1.0", "ai")


def test_spinf_client_moderates_with_its_own_queries_and_decision(official: LiveServer) -> None:
    own = spinf_client.query("red", "\nIs it red?{?}", [" yes", " no"])
    found = client_of(official).moderate(TEXTS[0], context="forum", mode="max", threshold=0.01, critical=[], queries=[own])
    assert (found.unsafe, found.mode, found.context) == (True, "max", "forum")
    assert [query["id"] for query in found.queries] == ["red"]


def test_spinf_client_decides_again_what_the_server_decided(official: LiveServer) -> None:
    client = client_of(official)
    stored = client.moderate(TEXTS[1], include_queries=True)
    pack = client.get_pack()
    again = stored.redecide(pack)
    assert (again.unsafe, again.mode, again.flagged) == (stored.unsafe, stored.mode, stored.flagged)
    for name, category in again.categories.items():
        assert category.score == pytest.approx(stored.categories[name].score, abs=2e-6)
    decided = client.moderate(TEXTS[1], mode="max", threshold=0.2)
    assert stored.redecide(pack, mode="max", threshold=0.2).score == pytest.approx(decided.score, abs=2e-6)


def test_spinf_client_runs_a_pack_file_on_its_own_side_to_the_same(official: LiveServer) -> None:
    """The file's queries go out as ordinary queries, in the pack's group; scores do not depend on which way they came."""
    client = client_of(official)
    hosted, local = client.moderate(TEXTS[0]), client.moderate(TEXTS[0], pack_file=client.get_pack())
    for name, category in local.categories.items():
        assert category.score == pytest.approx(hosted.categories[name].score, abs=2e-6)


def test_spinf_client_lists_packs_and_reads_their_errors(official: LiveServer) -> None:
    client = client_of(official)
    assert [entry["id"] for entry in client.list_packs()["packs"]] == ["spinf/moderation"]
    assert client.get_pack("spinf/moderation", "0.1.0") == toy_pack(pack="spinf/moderation")
    with pytest.raises(SpinfError) as missing:
        client.moderate("x", version="7")
    assert (missing.value.status, missing.value.code, missing.value.param) == (
        400,
        "unknown_pack_version",
        "scoring.packs.0.version",
    )


def test_the_official_namespace_is_kept(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="kept for the official packs; rename it, or pass --packs-allow-namespace spinf"):
        catalog_of(tmp_path, toy_pack(pack="spinf/moderation"))
