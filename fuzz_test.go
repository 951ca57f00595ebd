package pinboard

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// headersOf reads header lines as the server does; nil if it would refuse them.
func headersOf(lines string) *http.Request {
	text := "GET /counters/alice HTTP/1.1\r\nHost: p\r\n" + strings.ReplaceAll(lines, "\n", "\r\n") + "\r\n\r\n"
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		return nil
	}
	return r
}

// Whatever a client sends, no worker sees a name of pinboard's own, one of the
// client's connection alone, or a credential.
func FuzzHeadersForAWorker(f *testing.F) {
	for _, seed := range []string{
		"Connection:\nConnection: close, X-Hop\nX-Hop: 1\nPinboard-Epoch: 9\nTE: trailers", "Cookie: a=1; session=planted; b=2\nCookie: session=x",
		"Cookie:  session =1;session\nCookie: session", "Authorization: Bearer x\npinboard_epoch: 1\nPinned.X: y", "Upgrade: h2c\nHTTP2-Settings: AA",
		"Connection: x-forwarded-for, Cookie\nX-Forwarded-For: 6.6.6.6", "Cookie: \tsession=1;;=;\"session\"=2", "CONNECTION: Authorization",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	who := &passport.Identity{HideHeaders: []string{"authorization"}, HideCookies: []string{"session"}}
	trusted := prefixes("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, lines string, known bool) {
		r := headersOf(lines)
		if r == nil {
			return
		}
		r.RemoteAddr = "192.0.2.1:4000"
		before := r.Header.Clone()
		caller := who
		if !known {
			caller = nil
		}
		fields := string(trusted.appendFields(nil, r, peer(r), caller))
		h := headersOf(strings.TrimSuffix(strings.ReplaceAll(fields, "\r\n", "\n"), "\n")).Header
		require.Equal(t, before, r.Header, "the client's own request is not changed")
		for name, values := range h {
			require.False(t, wire.Reserved(name), name)
			if name == "Te" {
				require.Equal(t, []string{"trailers"}, values)
				continue
			}
			require.False(t, hopByHop(name), name)
			if name == headerForwardedFor || name == headerForwardedProto || name == headerForwardedHost {
				require.Len(t, values, 1, "nobody vouches for this client's word")
				continue
			}
			for _, line := range before[headerConnection] {
				for listed := range strings.SplitSeq(line, ",") {
					require.NotEqual(t, name, textproto.CanonicalMIMEHeaderKey(strings.Trim(listed, " \t")))
				}
			}
			if name != headerCookie {
				require.Equal(t, trimmed(before[name]), values)
			}
		}
		require.Equal(t, []string{"192.0.2.1"}, h[headerForwardedFor])
		if known {
			require.NotContains(t, h, "Authorization")
			require.Empty(t, (&http.Request{Header: h}).CookiesNamed("session"))
			requirePartsOf(t, ";", strings.Join(before[headerCookie], ";"), strings.Join(h[headerCookie], ";"))
		}
	})
}

// trimmed returns values as they are read: what a folded line of white space alone
// adds to their ends is no part of them (RFC 9110, section 5.5).
func trimmed(values []string) []string {
	values = slices.Clone(values)
	for i, value := range values {
		values[i] = textproto.TrimString(value)
	}
	return values
}

// requirePartsOf requires that the parts of rest are among those of whole, in
// the same order and byte for byte but for white space around them.
func requirePartsOf(t *testing.T, sep, whole, rest string) {
	t.Helper()
	parts := strings.Split(whole, sep)
	for part := range strings.SplitSeq(rest, sep) {
		at := slices.IndexFunc(parts, func(p string) bool { return strings.Trim(p, " \t") == strings.Trim(part, " \t") })
		if at < 0 {
			require.Empty(t, part)
			continue
		}
		parts = parts[at+1:]
	}
}

// A token in the query is gone for every reader, and nothing else is.
func FuzzHiddenParameters(f *testing.F) {
	for _, seed := range []string{
		"access_token=planted", "a=1&%61ccess_token=x&b=%zz", "access_token", "&&=&access_token=&", "access_token;b=2&c", "a=access_token=1", "access+token=1", "%access_token=1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		rest := withoutParameters(query, []string{"access_token"})
		values, _ := url.ParseQuery(rest) // it reads what it can
		require.NotContains(t, values, "access_token")
		for part := range strings.SplitSeq(rest, "&") {
			name, _, _ := strings.Cut(part, "=")
			require.NotEqual(t, "access_token", name)
		}
		require.Equal(t, rest, withoutParameters(rest, []string{"access_token"}))
		all, _ := url.ParseQuery(query)
		delete(all, "access_token")
		require.Equal(t, all, values)
		requirePartsOf(t, "&", query, rest)
	})
}

// A query for placements is read within its bounds, and reads the same when it
// is written down again.
func FuzzPlacementsQuery(f *testing.F) {
	for _, seed := range []string{
		"namespace=/counters", "namespace=%2Fa&hostname=H.example:80.&cursor=abc&limit=1000", "namespace=/a&limit=0", "namespace=/a&limit=+5", "namespace=/a&hostname=",
		"namespace=/a&namespace=/b", "namespace=/a;limit=1", "limit=%zz", "namespace=", "clientId=c&prefix=a-&hostname=h", "namespace=/a&limit=99999999999999999999",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := page(query)
		if err != nil {
			return
		}
		require.True(t, q.limit >= 1 && q.limit <= maxPageSize)
		values := url.Values{
			"cursor": {q.cursor}, "limit": {strconv.Itoa(q.limit)}, "clientId": {q.filter.ClientID}, "prefix": {q.filter.Prefix},
		}
		if q.namespace != "" { // else all that the operator may see
			require.NoError(t, wire.CheckNamespace(q.namespace))
			values.Set("namespace", q.namespace)
		}
		if q.hostname != "" {
			values.Set("hostname", q.hostname)
		}
		again, err := page(values.Encode())
		require.NoError(t, err)
		require.Equal(t, q, again)
	})
}

// A query for events is read within its bounds, and reads the same when it is
// written down again.
func FuzzEventsQuery(f *testing.F) {
	for _, seed := range []string{
		"", "namespace=/counters&id=alice", "id=alice", "namespace=/a&id=a%2Fb", "namespace=/a&hostname=H.example:80.&kind=placed&clientId=c", "before=1764460800000000",
		"before=0", "before=-1", "before=9007199254740993", "limit=1000&before=+5", "hostname=h", "limit=0", "kind=&clientId=&id=", "before=1&before=2", "a;b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := readFilter(values)
		if err != nil {
			return
		}
		require.True(t, q.limit >= 1 && q.limit <= maxPageSize)
		require.True(t, q.from >= 0 && q.from <= 1<<53)
		require.Equal(t, q.id != "", q.binding != "")
		again := url.Values{"limit": {strconv.Itoa(q.limit)}, "kind": {string(q.kind)}, "clientId": {q.clientID}}
		for name, value := range map[string]string{"namespace": q.namespace, "hostname": q.hostname, "id": q.id} {
			if value != "" {
				again.Set(name, value)
			}
		}
		if q.id != "" {
			require.NoError(t, wire.CheckID(q.id))
			require.Equal(t, store.Bind(q.hostname, q.namespace), q.binding)
		}
		if q.from != 0 {
			again.Set("before", strconv.FormatInt(q.from, 10))
		}
		same, err := readFilter(again)
		require.NoError(t, err)
		require.Equal(t, q, same)
	})
}

// Nobody speaks for an instance but the session that it is placed on, with its
// secret, and nobody is deeper than the limit.
func FuzzClusterCall(f *testing.F) {
	const session, secret, from = "session-0123456789", "planted-secret-of-a-session", "/counters/caller"
	for _, c := range [][4]string{
		{from, session, secret, "7"}, {from, session, secret, ""}, {from, session, secret, "51"}, {from, session, secret, "+1"},
		{"/counters/other", session, secret, "1"}, {from + "/", session, secret, "1"}, {from, session, "", "1"}, {"", "", "", ""}, {"/counters/%63aller", session, secret, "00000001"},
	} {
		f.Add(c[0], c[1], c[2], c[3])
	}
	memory := MemoryStore()
	// The session has to outlive the fuzzing.
	pb, err := New(Options{Passport: anyone{}, Store: memory, LeaseTTL: time.Hour})
	require.NoError(f, err)
	_, err = pb.store.Register(f.Context(), store.Registration{
		SessionID: session, ClientID: "c", Secret: wire.NewSecret(secret), Namespaces: []string{counters_}, AdvertiseURL: "http://127.0.0.1:1",
		Instances: map[string][]string{counters_: {"caller"}},
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, sentFrom, sentSession, sentSecret, depth string) {
		h := http.Header{wire.HeaderFrom: {sentFrom}, wire.HeaderSession: {sentSession}, wire.HeaderSessionSecret: {sentSecret}}
		if depth != "" {
			h[wire.HeaderDepth] = []string{depth}
		}
		require.True(t, isClusterCall(h))
		claims, caller, err := pb.proxy.clusterCaller(t.Context(), h)
		if err != nil {
			require.Zero(t, claims)
			require.Nil(t, caller)
			if secret == sentSecret && session == sentSession && from == sentFrom { // then it is the depth
				require.NotEmpty(t, depth)
			}
			return
		}
		require.Equal(t, [3]string{from, session, secret}, [3]string{sentFrom, sentSession, sentSecret})
		require.Equal(t, from, claims.Caller)
		want := 1
		if depth != "" {
			want, err = strconv.Atoi(depth)
			require.NoError(t, err)
		}
		require.Equal(t, want, claims.Depth)
		require.True(t, want >= 0 && want <= wire.MaxDepth)
	})
}

// The environment is read without a panic; faults are one line each and name a
// variable, never a secret; what is taken, New takes.
func FuzzEnvironment(f *testing.F) {
	f.Add("8080", "15000", "0", "2", "10.0.0.0/8, ::1", "redis://user:", "@one:1,two,[::1]:3/0?master_set=m")
	f.Add("x", "-1", "1e3", "NaN", "10.0.0.0/99", "rediss://:", "@")
	f.Add("", "", "", "", ",", "unix://u:", "@h?%zz\n")
	f.Add("0x10", "99.5", "inf", "1e9", "fe80::1%x", "redis://", "@[::1")
	f.Fuzz(func(t *testing.T, port, lease, hold, balance, proxies, before, after string) {
		const password = "planted-password-0123456789"
		env, err := ReadEnvironment(variables(map[string]string{
			"PORT": port, "PINBOARD_LEASE_TTL_MS": lease, "PINBOARD_PLACEMENT_HOLD_MS": hold, "PINBOARD_AFFINITY_BALANCE_FACTOR": balance,
			"PINBOARD_TRUSTED_PROXIES": proxies, "REDIS_URL": before + password + after,
		}))
		if err != nil {
			require.NotContains(t, err.Error(), "planted")
			for line := range strings.SplitSeq(err.Error(), "\n") {
				name, what, ok := strings.Cut(line, ": ")
				require.True(t, ok && what != "", "%q", line)
				require.Regexp(t, `^(PORT|REDIS_URL|PINBOARD_[A-Z_]+)$`, name)
			}
			return
		}
		require.NotNil(t, env.Redis)
		require.NotEmpty(t, env.Redis.InitAddress)
		env.Options.Store = MemoryStore() // nothing is dialled here
		pb, err := New(env.Options)
		require.NoError(t, err)
		require.NoError(t, pb.Close())
	})
}

// onePiece is a body that comes at once.
type onePiece []byte

func (p *onePiece) Next() ([]byte, error) { return *p, io.EOF }

// Only a worker that gives the very value back passes a probe.
func FuzzProbeAnswer(f *testing.F) {
	const value = "planted-challenge-value"
	f.Add(200, []byte(`{"value":"`+value+`"}`))
	f.Add(200, []byte(`{"value":"`+value+`"} x`))
	f.Add(204, []byte(`{"value":"`+value+`"}`))
	f.Add(200, []byte(`{"value":["`+value+`"],"VALUE":null}`))
	f.Add(302, []byte(``))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		answer := onePiece(body)
		err := probe{challengeValue: wire.NewSecret(value)}.judge(status, &answer)
		if err == nil {
			require.Equal(t, http.StatusOK, status)
			require.LessOrEqual(t, len(body), maxProbeAnswer)
			require.Contains(t, string(body), "{")
			return
		}
		require.NotContains(t, err.Error(), "planted")
	})
}

// However a worker words its refusal, the client gets it byte for byte, and
// only an object with nothing else in it has a detail.
func FuzzWorkersDetail(f *testing.F) {
	f.Add("application/json", []byte(`{"detail":"host draining; retry"}`))
	f.Add("application/json; charset=utf-8", []byte(`{"detail":"host draining; retry","x":1}`))
	f.Add("Application/JSON ;", []byte(`{"detail":"a","detail":7}`))
	f.Add("text/plain", []byte(`{"detail":"host draining; retry"}`))
	f.Add("application/json", bytes.Repeat([]byte(" "), maxDetail+1))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		if strings.ContainsFunc(kind, unicode.IsControl) {
			return // no answer
		}
		answer := "HTTP/1.1 503 Service Unavailable\r\nContent-Type: " + kind + "\r\n\r\n" + string(body)
		pool := upstream.New(upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			return scripted{Reader: strings.NewReader(answer)}, nil
		}})
		resp, err := pool.Do(t.Context(), &upstream.Request{Method: "GET", Target: "/", Host: "w"})
		require.NoError(t, err)
		a := &attempt{flow: flow{Context: t.Context()}, patience: time.Minute, resp: resp}
		defer resp.Close()
		detail := a.detail()
		require.NoError(t, a.fault)
		relayed := a.ahead
		for err = a.aheadErr; err == nil; {
			var piece []byte
			piece, err = resp.Next()
			relayed = append(relayed, piece...)
		}
		require.Equal(t, io.EOF, err)
		require.Equal(t, string(body), string(relayed))
		if detail != "" {
			require.LessOrEqual(t, len(body), maxDetail)
			require.Contains(t, strings.ToLower(kind), "application/json")
			require.Contains(t, string(body), `"`)
		}
	})
}

// scripted is a connection on which an answer is there already, and its end.
type scripted struct {
	net.Conn
	io.Reader
}

func (s scripted) Read(p []byte) (int, error)    { return s.Reader.Read(p) }
func (scripted) Write(p []byte) (int, error)     { return len(p), nil }
func (scripted) Close() error                    { return nil }
func (scripted) RemoteAddr() net.Addr            { return nil }
func (scripted) SetDeadline(time.Time) error     { return nil }
func (scripted) SetReadDeadline(time.Time) error { return nil }
