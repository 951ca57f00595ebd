package wire_test

import (
	"encoding/json"
	"math"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func FuzzParseAdvertiseURL(f *testing.F) {
	for _, raw := range []string{
		"http://127.0.0.1:8000", "HTTPS://Host.Example.:443/base/%2F//", "http://[2001:DB8::1]:80/", "http://0x7f.1", "http://u@h?q#f",
		`http://h\@x`, "http://h/%2e%2e", "http://[::ffff:1.2.3.4]:1", "http://[fe80::1%25a]",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		normal, host, err := wire.ParseAdvertiseURL(raw)
		if err != nil {
			require.Empty(t, normal+host)
			return
		}
		again, sameHost, err := wire.ParseAdvertiseURL(normal)
		require.NoError(t, err)
		require.Equal(t, normal, again)
		require.Equal(t, host, sameHost)
		// net/http, which dials it, must see the same.
		for _, text := range []string{normal, raw} {
			u, err := url.Parse(text)
			require.NoError(t, err)
			require.Equal(t, host, dialled(u.Hostname()), "%q", text)
			require.Nil(t, u.User)
			require.False(t, u.ForceQuery || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "")
		}
		u, err := url.Parse(normal)
		require.NoError(t, err)
		require.Equal(t, normal, u.Scheme+"://"+u.Host+u.EscapedPath())
		require.Equal(t, normal, u.String())
	})
}

// dialled is the host that net/http dials, in the spelling of a normal URL.
func dialled(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func FuzzParseRegister(f *testing.F) {
	f.Add(body(registration()))
	f.Add(body(registration(), "instances", `{"/a": ["x", null]}`, "epoch", `7`, "hostname", `"h"`, "envs", `{"/a": "b"}`))
	f.Add([]byte(`{"clientId": "\ud800", "headroom": 1e400}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := wire.ParseRegister(text)
		if err != nil {
			require.Nil(t, r)
			require.NotContains(t, err.Error(), "Go ")
			return
		}
		require.NotEmpty(t, r.ClientID)
		require.False(t, r.Secret.Empty())
		require.NotEmpty(t, r.Namespaces)
		for _, ns := range r.Namespaces {
			require.NoError(t, wire.CheckNamespace(ns))
		}
		requireAmount(t, r.Headroom)
		require.GreaterOrEqual(t, r.Epoch, int64(0))
		sent, err := json.Marshal(r)
		require.NoError(t, err)
		again, err := wire.ParseRegister(sent)
		require.NoError(t, err)
		require.True(t, r.Secret.Equal(again.Secret))
		resent, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(sent), string(resent))
	})
}

func requireAmount(t *testing.T, f float64) {
	t.Helper()
	require.True(t, f >= 0 && !math.IsInf(f, 0) && !math.Signbit(f), "%v", f)
}

func FuzzParseHeartbeat(f *testing.F) {
	f.Add(body(heartbeat()))
	f.Add(body(heartbeat(), "acks", `["m", null]`, "headroom", `-0`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := wire.ParseHeartbeat(text)
		if err != nil {
			require.Nil(t, h)
			return
		}
		requireAmount(t, h.Headroom)
		sent, err := json.Marshal(h)
		require.NoError(t, err)
		again, err := wire.ParseHeartbeat(sent)
		require.NoError(t, err)
		resent, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(sent), string(resent))
	})
}

func FuzzParseRelease(f *testing.F) {
	f.Add(body(release()))
	f.Add([]byte("[" + string(body(release(), "epoch", `"12"`)) + "]"))
	f.Add([]byte(`[null, {}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := wire.ParseRelease(text)
		if err != nil {
			require.Nil(t, list)
			return
		}
		for _, r := range list {
			require.NotEmpty(t, r.SessionID)
			require.True(t, r.Epoch >= 0 && r.Epoch < 1<<53)
		}
		sent, err := json.Marshal(list)
		require.NoError(t, err)
		again, err := wire.ParseRelease(sent)
		require.NoError(t, err)
		require.Equal(t, list, again)
	})
}

func FuzzCheckNamespace(f *testing.F) {
	for _, ns := range []string{"/counters", "/", "//", "/a b", "/_x", "/registry", "/\xff", "/a{b}c"} {
		f.Add(ns)
	}
	f.Fuzz(func(t *testing.T, ns string) {
		if wire.CheckNamespace(ns) != nil {
			return
		}
		require.True(t, utf8.ValidString(ns))
		require.LessOrEqual(t, len(ns), wire.MaxNamespaceBytes)
		require.Equal(t, 0, strings.LastIndex(ns, "/"))
		require.Equal(t, []string{ns}, strings.Fields(ns))
		// A path holds it as one escaped segment and gives it back.
		back, err := url.PathUnescape("/" + url.PathEscape(ns[1:]))
		require.NoError(t, err)
		require.Equal(t, ns, back)
	})
}

func FuzzCheckID(f *testing.F) {
	for _, id := range []string{"alice", "", ".", "..", "a%2Fb", "é", "a~-_."} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if wire.CheckID(id) != nil {
			return
		}
		require.True(t, id != "" && len(id) <= wire.MaxIDBytes)
		require.Equal(t, id, url.PathEscape(id))
		require.Equal(t, "/x/"+id, (&url.URL{Path: "/x"}).JoinPath(id).Path)
	})
}
