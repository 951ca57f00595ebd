package pinboard

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// measuredNode is a node with three workers of /a, whose quarantine is over.
func measuredNode(tb testing.TB, backend *Store) *Pinboard {
	tb.Helper()
	pb, err := New(Options{Passport: anyone{}, Store: backend, LeaseTTL: time.Hour})
	require.NoError(tb, err)
	pb.placer.back.begun = true // nobody is on his way back
	tb.Cleanup(func() { _ = pb.Shutdown(context.Background()) })
	hasty := backend.backend.Open(store.Config{Prefix: "pinboard", LeaseTTL: time.Millisecond, Shards: 1})
	for i := range 3 {
		r := store.Registration{
			SessionID: rand.Text(), ClientID: fmt.Sprint("worker-", i), Secret: wire.NewSecret("secret"),
			AdvertiseURL: fmt.Sprint("http://worker-", i), Namespaces: []string{"/a"}, Headroom: 1e12,
		}
		_, err := pb.store.Register(tb.Context(), r)
		require.NoError(tb, err)
		require.NoError(tb, pb.store.Activate(tb.Context(), r.SessionID))
	}
	require.Eventually(tb, func() bool {
		res, err := hasty.Resolve(tb.Context(), store.Request{Namespace: "/a", ID: "first", View: store.AnyView, BalanceFactor: 1})
		return err == nil && res.Outcome == store.Placed
	}, patience, time.Millisecond)
	return pb
}

// stores are the two stores; that in Redis is in a server of its own, with a client of the host's or
// with the standalone server's.
var stores = map[string]func(tb testing.TB) *Store{
	"memory": func(testing.TB) *Store { return MemoryStore() },
	"redis": func(tb testing.TB) *Store {
		return &Store{backend: redis.New(redistest.New(tb, redistest.Options{}).Client(tb))}
	},
	"redis, standalone": func(tb testing.TB) *Store {
		return &Store{backend: redis.New(standaloneClient(redistest.New(tb, redistest.Options{}), tb))}
	},
}

// look resolves an id, with an affinity key.
func (p *Pinboard) look(tb testing.TB, id string) {
	_, err := p.placer.resolve(tb.Context(), ask{
		instance: instance{"/a", id}, key: func() (string, bool) { return "198.51.100.7", true },
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkResolveHit looks up ids that this node has had before.
func BenchmarkResolveHit(b *testing.B) {
	for name, open := range stores {
		b.Run(name, func(b *testing.B) {
			pb := measuredNode(b, open(b))
			pb.look(b, "alice")
			b.ReportAllocs()
			for b.Loop() {
				pb.look(b, "alice")
			}
		})
	}
}

// BenchmarkResolveMiss has ids placed that nobody had before.
func BenchmarkResolveMiss(b *testing.B) {
	for name, open := range stores {
		b.Run(name, func(b *testing.B) {
			pb := measuredNode(b, open(b))
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				pb.look(b, strconv.Itoa(n))
			}
		})
	}
}

func candidates(n int) []store.Candidate {
	all := make([]store.Candidate, n)
	for i := range all {
		all[i] = store.Candidate{SessionID: rand.Text(), ClientID: rand.Text(), Headroom: 100}
	}
	return all
}

// BenchmarkAffinity finds the worker that an affinity key prefers.
func BenchmarkAffinity(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("%d workers", n), func(b *testing.B) {
			all := candidates(n)
			b.ReportAllocs()
			for b.Loop() {
				rendezvous("198.51.100.7", all, nil)
			}
		})
	}
}

// fromABrowser is a request with what browsers and those who attack send.
func fromABrowser() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/a/alice/messages?after=17", nil)
	r.Header = http.Header{
		"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"},
		"Accept":     {"application/json"}, "Accept-Language": {"en-GB,en;q=0.5"}, "Accept-Encoding": {"gzip, deflate, br"},
		"Cookie": {"theme=dark; seen=1"}, "Referer": {"https://app.example/"}, "X-Forwarded-For": {"198.51.100.7"},
		"Connection": {"keep-alive, X-Hop"}, "X-Hop": {"1"}, "Pinboard-Epoch": {"9"}, "pinned.x": {"9"},
	}
	return r
}

// BenchmarkHeaderCleanUp writes a request's headers as a worker gets them, and
// copies an answer's.
func BenchmarkHeaderCleanUp(b *testing.B) {
	b.Run("request", func(b *testing.B) {
		r, from, buf := fromABrowser(), netip.MustParseAddr("192.0.2.1"), make([]byte, 0, 4096)
		trusted := proxies{netip.MustParsePrefix("192.0.2.0/24")}
		b.ReportAllocs()
		for b.Loop() {
			buf = trusted.appendFields(buf[:0], r, from, nil)
		}
	})
	b.Run("answer", func(b *testing.B) {
		answer := anAnswer()
		b.ReportAllocs()
		for b.Loop() {
			copyFields(http.Header{}, answer)
		}
	})
}

func anAnswer() upstream.Header {
	return upstream.Header{
		{Name: "Content-Type", Value: "application/json"}, {Name: "Date", Value: "Mon, 01 Dec 2025 00:00:00 GMT"},
		{Name: "Cache-Control", Value: "no-store"}, {Name: "Etag", Value: `"1"`}, {Name: "Vary", Value: "Accept"},
		{Name: "Connection", Value: "X-Hop"}, {Name: "X-Hop", Value: "1"}, {Name: "Pinned-Refusal", Value: "x"},
	}
}
