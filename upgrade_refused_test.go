package pinboard

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plainUpgrade has no host name that the node would have to ask about.
var plainUpgrade = strings.ReplaceAll(upgradeRequest("/counters/alice"), "app.example", "p")

// An upgrade's refusal says nothing: uvicorn answers with a bare 403, in whichever of
// its ways.
func TestABareRefusalOfAnUpgradeByAStaleRouteIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"with a length": "Content-Length: 0\r\nConnection: close", "in chunks": "Transfer-Encoding: chunked", "without": "Connection: close",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, a, b, moved := outOfDate(t, func(h *hit) {
				h.send("HTTP/1.1 403 Forbidden\r\n" + head + "\r\n\r\n")
				if name == "in chunks" {
					h.send("0\r\n\r\n")
				}
				h.last = true
			})
			before := len(a.seen())
			require.Equal(t, 200, f.ask(plainUpgrade).answer("GET").StatusCode)
			require.Len(t, a.seen(), before+1, "the stale route was tried")
			require.Equal(t, moved, b.only().epoch())
		})
	}
}

// It may be the application's own: where the id has not moved it is the answer, at
// once, and so is one that says why.
func TestARefusalOfAnUpgradeThatIsTheApplicationsIsTheAnswer(t *testing.T) {
	t.Parallel()
	for body, stale := range map[string]bool{"": false, "not for you": true} {
		refuse := func(h *hit) { h.reply(403, body) }
		if stale {
			f, _, b, _ := outOfDate(t, refuse)
			require.Equal(t, 403, f.ask(plainUpgrade).answer("GET").StatusCode)
			require.Empty(t, b.seen())
			continue
		}
		f, a, b, sa, _ := pair(t, refuse, nil, func(s *setup) { s.opts.PlacementHold = time.Minute })
		asked := 0
		for ; f.pb.counters.cacheHits.Load() == 0; asked++ { // at last by a route that is remembered
			require.Equal(t, 403, f.ask(plainUpgrade).answer("GET").StatusCode)
		}
		require.Len(t, a.seen(), asked)
		require.Empty(t, b.seen())
		require.Equal(t, sa.SessionID, f.owner("alice"))
	}
}
