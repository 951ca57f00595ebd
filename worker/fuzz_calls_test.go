package worker

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Whatever stands in the headers, an instance's route is for what pinboard has
// attested for the current session alone, and a probe's route for the secret.
func FuzzAttestationHeader(f *testing.F) {
	for _, seed := range []string{"", "good", "good.", " good", "good\n", "..", "other", "good\ngood"} {
		f.Add(seed, "secret", "7")
		f.Add(seed, "x", "-1")
	}
	f.Fuzz(func(t *testing.T, header, probe, epoch string) {
		w := fuzzed(t)
		w.reg.mu.Lock()
		session := "session"
		w.reg.session.Store(&session)
		w.reg.mu.Unlock()
		mint := func(audience string) string {
			token, err := attest.Mint(w.reg.secret, attest.Claims{Audience: audience}, time.Now())
			require.NoError(t, err)
			return token
		}
		good := mint("session")
		// The fuzzer can't know what is minted here.
		text := strings.NewReplacer("good", good, "other", mint("another")).Replace(header)
		probe = strings.ReplaceAll(probe, "secret", w.reg.secret.Reveal())
		r := httptest.NewRequest(http.MethodGet, "/base/c/1/x", nil)
		if text != "" {
			r.Header[wire.HeaderAttestation] = strings.Split(text, "\n")
		}
		r.Header[wire.HeaderEpoch] = []string{epoch}
		_, _, err := w.attested(r.Header[wire.HeaderAttestation])
		require.Equal(t, text == good, err == nil, "%q", header)
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		require.Equal(t, text != good, rec.Code == http.StatusForbidden, "%d to %q", rec.Code, header)

		r = httptest.NewRequest(http.MethodGet, "/base"+wire.PathChallenge, nil)
		r.Header[wire.HeaderProxySecret] = []string{probe}
		rec = httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		want := http.StatusForbidden
		if probe == w.reg.secret.Reveal() {
			want = http.StatusNotFound // there is no challenge yet
		}
		require.Equal(t, want, rec.Code)
	})
}

// Control messages are acknowledged up to the first one that could not be
// applied, in order, and applying them again tells the same.
func FuzzControlMessages(f *testing.F) {
	for _, seed := range []string{
		`[{"msgId":"a","type":"wind_down","ns":"/c","id":"1","deadline":5},{"msgId":"b","type":"wind_down","id":"2","deadline":null}]`,
		`[{"msgId":"a","type":"x"},{"msgId":"b","type":"wind_down","ns":"/c","id":"1","deadline":1e300}]`,
		`[7,null,{"msgId":"","type":"wind_down","id":"1","deadline":-1e300}]`, `[{"msgId":1,"type":"wind_down","id":"1","deadline":0}]`, `{}`, `null`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, messages string) {
		if !json.Valid([]byte(messages)) {
			return
		}
		w := fuzzed(t)
		a := &answer{status: http.StatusOK, fields: map[string]json.RawMessage{"messages": json.RawMessage(messages)}}
		confirmed := w.reg.applyMessages(a)
		require.Equal(t, confirmed, w.reg.applyMessages(a))
		var list []json.RawMessage
		if json.Unmarshal([]byte(messages), &list) != nil {
			require.Empty(t, confirmed)
			return
		}
		var ids []string
		for _, raw := range list {
			var m map[string]json.RawMessage
			var id string
			if json.Unmarshal(raw, &m) == nil && json.Unmarshal(m["msgId"], &id) == nil && id != "" {
				ids = append(ids, id)
			}
		}
		require.LessOrEqual(t, len(confirmed), len(ids))
		if len(confirmed) > 0 {
			require.Equal(t, ids[:len(confirmed)], confirmed)
		}
	})
}

// Whatever Retry-After says, the next attempt comes: not at once, and not later
// than half a minute.
func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "1", "0", "-1", "NaN", "Inf", "1e309", "Wed, 21 Oct 2026 07:28:00 GMT", "0x1p-2", "1_000", "120"} {
		f.Add(seed, uint8(1), 0.5)
	}
	f.Fuzz(func(t *testing.T, header string, failures uint8, jitter float64) {
		if !(jitter >= 0 && jitter < 1) {
			return
		}
		b := backoff{interval: 3 * time.Second, jitter: func() float64 { return jitter }}
		last := time.Duration(0)
		for range int(failures) + 1 {
			b.deferBy(header)
			delay := b.delay()
			require.GreaterOrEqual(t, delay, time.Duration(0.3*float64(minDefer)))
			require.LessOrEqual(t, delay, maxBackoff)
			require.GreaterOrEqual(t, delay, last, "it never gets shorter while attempts fail alike")
			last = delay
		}
		b.reset()
		require.Equal(t, 3*time.Second, b.delay())
	})
}
