"""Brings vectors.json up to date with the Python client.

Usage: python vectors.py < ours.json > vectors.json, where pinned 0.16.0 is installed and ours.json maps names to
tokens that Mint made with the secret, time and audience below.
"""

import json
import sys

from pinned.pinboard.attestation import mint_attestation, verify_attestation

SECRET = "0123456789abcdef" * 4
NOW = 1700000000
SESSION = "session-1"

MINTED = {
    "anonymous": {"aud": SESSION},
    "cluster": {"aud": SESSION, "caller": "/counters/alice", "depth": 3},
    "cluster at depth 0": {"aud": SESSION, "caller": "/a/b", "depth": 0},
    "not ASCII": {"aud": "session-é", "caller": "/zähler/bob", "depth": 1},
}

json.dump(
    {
        "secret": SECRET,
        "now": NOW,
        "minted": {
            name: {"token": mint_attestation(SECRET, now=NOW + 0.75, **claims), **claims}
            for name, claims in MINTED.items()
        },
        "verified": {
            name: {
                "token": token,
                "claims": verify_attestation(token, secret=SECRET, audiences={SESSION}, now=NOW + 0.75),
            }
            for name, token in json.load(sys.stdin).items()
        },
    },
    sys.stdout,
    indent=2,
)
print()
