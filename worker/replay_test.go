package worker

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// replay presents an attestation that came with another request, and returns
// the status.
func (h *harness) replay(method, path, token string) int {
	h.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set(wire.HeaderAttestation, token)
	r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(h.epoch, 10))
	rec := h.do(r)
	if rec.Code == http.StatusForbidden {
		require.Equal(h.t, wire.DetailInvalidAttestation, detail(h.t, rec))
	}
	return rec.Code
}

// Two workers may have got sessions of one name from two pinboards; that their
// secrets differ is enough.
func TestAnAttestationIsForOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newHarness(t, Options{}, hosting(echo)), newHarness(t, Options{}, hosting(echo))
		defer a.stop()
		defer b.stop()
		a.start()
		b.start()
		require.Equal(t, a.w.reg.sessionID(), b.w.reg.sessionID(), "the fakes count alike")
		forA := a.mint(attest.Claims{})
		require.Equal(t, http.StatusForbidden, b.replay(http.MethodGet, "/c/1", forA))
		require.Equal(t, http.StatusOK, a.replay(http.MethodGet, "/c/1", forA))
		require.False(t, b.live("/c", "1"))
	})
}

// C45: the next process at the address is another worker, whatever it is called.
func TestAnAttestationDoesNotOutliveItsProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before := newHarness(t, Options{}, hosting(echo))
		before.start()
		old := before.mint(attest.Claims{})
		before.stop()
		require.NotEqual(t, http.StatusOK, before.replay(http.MethodGet, "/c/1", old), "it has left")

		after := newHarness(t, Options{}, hosting(echo))
		defer after.stop()
		require.Equal(t, http.StatusForbidden, after.replay(http.MethodGet, "/c/1", old), "before it registers")
		after.start()
		require.Equal(t, http.StatusForbidden, after.replay(http.MethodGet, "/c/1", old))
		require.False(t, after.live("/c", "1"))
	})
}

func TestAnAttestationEndsWithItsSession(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.after(2 * time.Second)
		old := h.mint(attest.Claims{})
		ahead := h.mint(attest.Claims{Audience: "session-2"})
		require.Equal(t, http.StatusForbidden, h.replay(http.MethodGet, "/c/1", ahead))
		require.Equal(t, http.StatusOK, h.replay(http.MethodGet, "/c/1", old))
		losing := h.losing()
		h.pb.on(func(c call) (reply, bool) {
			out, ok := losing(c)
			if c.path == wire.PathRegister {
				out.delay = 2 * time.Second
			}
			return out, ok
		})
		h.after(2 * time.Second)
		require.Empty(t, h.w.reg.sessionID())
		require.Equal(t, http.StatusForbidden, h.replay(http.MethodGet, "/c/1", old), "between two sessions")
		require.Equal(t, http.StatusForbidden, h.replay(http.MethodGet, "/c/1", ahead))
		h.after(2 * time.Second)
		require.Equal(t, "session-2", h.w.reg.sessionID())
		require.Equal(t, http.StatusForbidden, h.replay(http.MethodGet, "/c/1", old))
		require.Equal(t, http.StatusOK, h.replay(http.MethodGet, "/c/1", h.mint(attest.Claims{})))
		h.pb.on(nil)
	})
}

// What a worker says aloud signs nothing: neither what goes to pinboard and
// back, nor what operators are shown.
func TestOnlyTheSecretSigns(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		sent := h.pb.last(t, wire.PathRegister).body
		for _, key := range []string{
			sent["challenge"].(string), sent["challengeValue"].(string), sent["clientId"].(string), h.w.reg.sessionID(), "the-token",
			sent["secret"].(string) + sent["challenge"].(string),
		} {
			forged, err := attest.Mint(wire.NewSecret(key), attest.Claims{Audience: h.w.reg.sessionID()}, h.now().wall)
			require.NoError(t, err)
			require.Equal(t, http.StatusForbidden, h.replay(http.MethodGet, "/c/1", forged))
		}
		require.False(t, h.live("/c", "1"))
	})
}

// The contract binds an attestation to a session and to half a minute, and to
// nothing that is asked, and the Python client checks no more either:
// docs/workers.md says so.
func TestAnAttestationBindsNeitherMethodNorNamespaceNorID(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, map[string]Constructor{"/c": echo, "/d": echo}, func(t *testing.T, h *harness) {
		h.start()
		token := h.mint(attest.Claims{Account: &attest.Account{Subject: "alice"}})
		for _, asked := range [][2]string{{"GET", "/c/1"}, {"GET", "/c/1"}, {"POST", "/c/1/x?y"}, {"GET", "/c/2"}, {"DELETE", "/d/1"}} {
			require.Equal(t, http.StatusOK, h.replay(asked[0], asked[1], token), asked)
		}
	})
}

func TestAnAttestationsTimeHasExactEdges(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		token := h.mint(attest.Claims{})
		for _, c := range []struct {
			wall  time.Duration // since it was minted, by the worker's clock
			taken bool
		}{
			{-30*time.Second - 1, false}, {-30 * time.Second, true}, {0, true}, {30 * time.Second, true}, {60 * time.Second, true},
			{60*time.Second + 1, false}, {-24 * time.Hour, false}, {24 * time.Hour, false},
		} {
			h.wallStep.Store(int64(c.wall))
			// After a step of the clock the lease may be over: that is said only
			// to who is attested.
			status := h.replay(http.MethodGet, "/c/1", token)
			require.Equal(t, c.taken, status != http.StatusForbidden, "%v: %d", c.wall, status)
		}
		h.wallStep.Store(0)
	})
}
