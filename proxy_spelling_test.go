package pinboard

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// forgeries are all the spellings, in which somebody could try to pass a header
// off as pinboard's, of names that mean something and of others.
func forgeries() []string {
	var all []string
	for _, name := range []string{
		"pinboard-attestation", "pinboard-epoch", "pinboard-proxy-secret", "pinboard-from", "pinboard-session", "pinboard-session-secret",
		"pinboard-subrequest-depth", "pinned-refusal", "pinned-x", "pinboard-", "pinned-", "pinboard--epoch",
	} {
		for _, separators := range []string{"-", "_", ".", "-_", "_-", "._"} {
			spelt := []byte(name)
			n := 0
			for i, c := range spelt {
				if c == '-' {
					spelt[i] = separators[n%len(separators)]
					n++
				}
			}
			mixed := []byte(strings.ToLower(string(spelt)))
			for i := range mixed {
				if i%2 == 1 && mixed[i] >= 'a' && mixed[i] <= 'z' {
					mixed[i] -= 'a' - 'A'
				}
			}
			all = append(all, string(spelt), strings.ToUpper(string(spelt)), string(mixed), http.CanonicalHeaderKey(string(spelt)))
		}
	}
	// The names of a cluster call are for callers to use, and refused if false.
	cluster := []string{"pinboard-from", "pinboard-session", "pinboard-session-secret"}
	all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(cluster, strings.ToLower(name)) })
	slices.Sort(all)
	return slices.Compact(all)
}

// unforged checks that what reached the worker is attested as it is, and that
// nothing in it, trailers too, could be read as pinboard's but the two headers
// that are.
func (h *hit) unforged(s *session, name string) attest.Claims {
	h.t.Helper()
	lines := strings.Split(h.head, "\r\n")[1:]
	lines = append(lines, strings.Split(strings.TrimSuffix(h.trailer, "\r\n"), "\r\n")...)
	var ours []string
	for _, line := range lines {
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		name = strings.TrimSpace(strings.NewReplacer("_", "-", ".", "-").Replace(name))
		if strings.HasPrefix(name, "pinboard-") || strings.HasPrefix(name, "pinned-") {
			ours = append(ours, name)
		}
	}
	slices.Sort(ours)
	require.Equal(h.t, []string{"pinboard-attestation", "pinboard-epoch"}, ours, "%q: %s", name, h.head)
	require.NotContains(h.t, strings.ToLower(h.head+h.trailer), "forged", "%q", name)
	return h.claims(s)
}

func TestNoSpellingOfAHeaderOfOursReachesAWorker(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, func(h *hit) {
		if h.header.Get("Upgrade") != "" {
			h.accept()
			h.gone()
			return
		}
		h.body()
		h.ok("")
	})
	s := f.register(w, "a")
	epoch := s.place("alice")
	s.place("caller")
	seen := 0
	check := func(name, caller string) {
		t.Helper()
		hits := w.seen()
		require.Len(t, hits, seen+1, name)
		h := hits[seen]
		seen++
		claims := h.unforged(s, name)
		require.Equal(t, caller, claims.Caller, name)
		require.Nil(t, claims.Account, name)
		require.Equal(t, epoch, h.epoch(), name)
	}
	for _, name := range forgeries() {
		// Twice, folded over two lines, and named as if it were of one hop.
		forged := name + ": forged\r\n" + name + ":forged\r\n  forged\r\nConnection: " + name + "\r\n"
		proof := strings.Join(caller("/counters/caller", s), "\r\n") + "\r\n"
		if strings.EqualFold(name, wire.HeaderDepth) {
			forged, proof = name+": 50\r\n", "" // a caller's to say
		}
		for by, headers := range map[string]string{"": forged, "/counters/caller": forged + proof} {
			if by != "" && proof == "" {
				continue
			}
			const start, chunked = " /counters/alice HTTP/1.1\r\nHost: p\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
			resp, _ := f.ask("GET" + start + headers + "\r\n").whole("GET")
			require.Equal(t, 200, resp.StatusCode, name)
			check(name, by)
			for _, announced := range []string{"", "Trailer: " + name + "\r\n", "Trailer: X-Up," + name + " \r\n"} {
				resp, _ = f.ask("POST" + start + headers + announced + chunked + name + ": forged\r\n" + name + ": forged\r\n\r\n").whole("POST")
				require.Equal(t, 200, resp.StatusCode, name)
				check(name, by)
			}
			upgrade := strings.Replace(upgradeRequest("/counters/alice"), "\r\n\r\n", "\r\n"+headers+"\r\n", 1)
			require.Equal(t, 101, f.ask(upgrade).answer("GET").StatusCode, name)
			check(name, by)
		}
		if strings.ToLower(name) == name {
			h2 := f.frames()
			h2.open(false, requestHead("POST", "/counters/alice", "trailer: "+name, name+": forged", name+": forged")...)
			require.NoError(t, h2.WriteData(h2.stream, false, []byte("x")))
			h2.head(true, name+": forged", "x-up: 1")
			require.Equal(t, "200", h2.reply().status, name)
			check(name, "")
		}
	}
}

// What is no name must not become one on the way.
func TestNoMalformedNameOfAHeaderReachesAWorker(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, func(h *hit) { h.body(); h.ok(""); h.last = true })
	s := f.register(w, "a")
	names := []string{
		"pinboard-epoch ", "pinboard-epoch\t", " pinboard-epoch", "\tpinboard-epoch", "", " ", "pinboard epoch", "pinboard-epoch\x00",
		"pinboard-epoch\x0b", "pinboard-epoch\r", "pinboard-epoch\x7f", "pinboard-epoch:", ":pinboard-epoch", "\"pinboard-epoch\"",
		"pınboard-epoch", "pinboard‐epoch", "pinboard‑epoch", "pinbo\u0430rd-epoch", "pinboard-\u017fession", "pinboard-epoch\u212a",
		"\uff50inboard-epoch", "pinboard\u00adepoch", "\ufeffpinboard-epoch", "pinboard-\xffepoch", "pinned\u2024x", "pinned\uff0dx", "pinned\uff3fx",
	}
	for _, name := range names {
		for _, raw := range []string{
			"GET /counters/alice HTTP/1.1\r\nHost: p\r\nX-First: 1\r\n" + name + ": forged\r\n\r\n",
			"GET /counters/alice HTTP/1.1\r\n" + name + ": forged\r\nHost: p\r\n\r\n",
			"POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nTrailer: " + name + "\r\n\r\n0\r\n" + name + ": forged\r\n\r\n",
		} {
			f.ask(raw).answer("GET") // whether or not it is refused
		}
		h := f.frames()
		// What HPACK carries is bytes; a colon in a name is a pseudo header.
		h.stream += 2
		h.block.Reset()
		for _, field := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "p"}, {":path", "/counters/alice/h2"}, {name, "forged"}} {
			require.NoError(t, h.enc.WriteField(hpackField(field)))
		}
		require.NoError(t, h.WriteHeaders(headersFrame(h)))
		require.NotEqual(t, "200", h.status(), "%q", name)
	}
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
	for _, h := range w.seen() {
		require.NotEqual(t, "/counters/alice/h2", h.target)
		// A line that begins with white space goes on with the one before.
		h.head = regexp.MustCompile(`X-First: 1 [^\r]*`).ReplaceAllString(h.head, "X-First: 1")
		h.unforged(s, h.head)
	}
	// Names that are like ours and the application's all the same.
	w = newFake(t, nil)
	f.register(w, "a").place("bob")
	for i, name := range []string{"x-pinboard-epoch", "pinboard", "pinboardepoch", "pinboard~epoch", "pinned", "pinnedx", "_pinboard-epoch", "pin-board-epoch"} {
		resp, _ := f.get("/counters/bob", name+": the application's")
		require.Equal(t, 200, resp.StatusCode, i)
		require.Equal(t, "the application's", w.seen()[i].header.Get(name), name)
	}
}

func TestNoSpellingOfAHeaderOfOursReachesAClient(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	names := forgeries()
	names = append(names, "pinboard-from", "Pinboard-Session", "PINBOARD-SESSION-SECRET")
	var headers []string
	for _, name := range names {
		headers = append(headers, name+": planted")
	}
	// A part of them at a time: a transport takes in 4 KiB of trailers.
	var parts [][]string
	for part := range slices.Chunk(names, 50) {
		parts = append(parts, part)
	}
	w := newFake(t, func(h *hit) {
		h.body()
		kind := strings.Split(h.target, "/")
		part, _ := strconv.Atoi(kind[4])
		names := parts[part]
		headers := headers[50*part:][:len(names)]
		switch kind[3] {
		case "ws":
			h.accept(headers...)
			h.last = true
		case "early":
			h.send("HTTP/1.1 103 Early Hints\r\n" + lines(headers) + "X-Sum: passed\r\n\r\n")
			h.ok("")
		case "trailers":
			h.chunked("Trailer: X-Sum, " + strings.Join(names, ", "))
			h.send("1\r\nx\r\n0\r\nX-Sum: passed\r\n" + lines(headers) + "\r\n")
		case "late":
			h.chunked()
			h.send("1\r\nx\r\n0\r\nX-Sum: passed\r\n" + lines(headers) + "\r\n")
		case "fault":
			h.reply(500, "", append(headers, "X-Sum: passed")...)
		default:
			h.ok("", append(headers, "X-Sum: passed", "Connection: X-Hop")...)
		}
	})
	f.register(w, "a")
	clean := func(got, kind string) {
		t.Helper()
		got = strings.ToLower(got)
		require.Contains(t, got, "x-sum", kind)
		require.Contains(t, got, "passed", kind)
		for _, ours := range []string{"planted", "pinboard", "pinned"} {
			require.NotContains(t, got, ours, kind)
		}
	}
	for part := range parts {
		for _, kind := range []string{"plain", "fault", "early", "trailers", "late", "ws"} {
			path := fmt.Sprint("/counters/alice/", kind, "/", part)
			if kind == "ws" {
				got, _ := f.ask(upgradeRequest(path)).rest()
				require.True(t, strings.HasPrefix(got, "HTTP/1.1 101 "), got)
				clean(got+"x-sum passed", kind)
				continue
			}
			got, _ := f.ask("GET " + path + " HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").rest()
			clean(got, kind)
			h := f.frames()
			h.open(true, requestHead("GET", path)...)
			r := h.reply()
			require.True(t, r.whole, kind)
			clean(fmt.Sprint(r), kind)
		}
	}
}

// What folds to a name that is about one connection, or says where a message ends,
// passes neither way, nor does a trailer that Connection lists.
func TestNoSpellingOfAHeaderOfOneConnectionPasses(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way func(*setup)) {
		f := newFront(t, way)
		names := []string{
			"Transfer_Encoding", "transfer.encoding", "Keep_Alive", "Proxy_Authorization", "Proxy.Authenticate", "Proxy_Connection",
			"HTTP2_Settings", "Content_Length", "Content.Length",
		}
		var forged []string
		for _, name := range names {
			forged = append(forged, name+": forged")
		}
		trailers := append([]string{"X-Sum: 1", "X-Hop: forged"}, forged...)
		const listed = "Connection: close, X-Hop"
		w := newFake(t, func(h *hit) {
			h.body()
			kind := "Content-Type: text/plain"
			if strings.HasSuffix(h.target, "/events") {
				kind = "Content-Type: text/event-stream"
			}
			h.chunked(append([]string{kind, listed, "X_Kept: 1", "Trailer: X-Sum, X-Hop, " + strings.Join(names, ", ")}, forged...)...)
			h.send("1\r\nx\r\n0\r\n" + lines(trailers) + "\r\n")
			h.last = true
		})
		f.register(w, "a")
		for i, path := range []string{"/counters/alice", "/counters/alice/events"} {
			got, err := f.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\n" + listed + "\r\nX_Kept: 1\r\nTrailer: X-Sum, X-Hop, " + strings.Join(names, ", ") +
				"\r\n" + lines(forged) + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + lines(trailers) + "\r\n").rest()
			require.NoError(t, err)
			h := w.seen()[i]
			for _, passed := range []string{strings.ToLower(got), strings.ToLower(h.head + "\r\n" + h.trailer)} {
				require.NotContains(t, passed, "forged")
				require.NotContains(t, passed, "x-hop")
				require.Contains(t, passed, "x-sum: 1")
				require.Contains(t, passed, "x_kept: 1")
				for _, name := range names {
					require.NotContains(t, passed, strings.ToLower(name))
				}
			}
		}
	})
}

// A worker behind a gateway that folds names must not read a client's word.
func TestNoSpellingOfAForwardingHeaderStandsBesideOurs(t *testing.T) { // C01, C27
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		f := newFront(t, h2c, func(s *setup) {
			if trusted {
				s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			}
		})
		w := newFake(t, func(h *hit) { h.body(); h.ok("") })
		f.register(w, "a")
		for i, spell := range []func(string) string{
			func(s string) string { return strings.ReplaceAll(s, "-", "_") },
			func(s string) string { return strings.ReplaceAll(s, "-", ".") },
			func(s string) string { return strings.Replace(strings.ToLower(s), "-", "_", 1) },
			func(s string) string { return strings.ToUpper(strings.Replace(s, "-F", ".F", 1)) },
		} {
			var headers []string
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"} {
				headers = append(headers, spell(name)+": forged")
			}
			c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nX_Kept: 1\r\nX_Forwarded_Prefix: 2\r\n" + lines(headers) +
				"Connection: X-Forwarded-For\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX_Up: 1\r\n" + lines(headers) +
				"Content_Length: 1\r\nSet.Cookie: forged\r\nX_Real_IP: forged\r\n\r\n")
			resp, _ := c.whole("POST")
			require.Equal(t, 200, resp.StatusCode)
			h := w.seen()[i]
			require.NotContains(t, h.head+h.trailer, "forged")
			require.Equal(t, []string{"127.0.0.1"}, h.header["X-Forwarded-For"])
			require.Equal(t, []string{"http"}, h.header["X-Forwarded-Proto"])
			require.Equal(t, []string{"p"}, h.header["X-Forwarded-Host"])
			require.Equal(t, "1", h.header.Get("X_kept"))
			require.Equal(t, "2", h.header.Get("X_forwarded_prefix"))
			require.Equal(t, "X_up: 1\r\n", h.trailer)
		}
	}
}
