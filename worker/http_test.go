package worker

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestTheChallengeRoute(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		ask := func(method, challenge string, secrets ...string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, wire.PathChallenge+"?challenge="+challenge, nil)
			for _, s := range secrets {
				r.Header.Add(wire.HeaderProxySecret, s)
			}
			return h.do(r)
		}
		secret := h.w.reg.secret.Reveal()
		require.Equal(t, http.StatusNotFound, ask("GET", "", secret).Code, "there is none before the first attempt")
		h.start()
		sent := h.pb.last(t, wire.PathRegister).body
		current := sent["challenge"].(string)
		rec := ask("GET", current, secret)
		require.Equal(t, http.StatusOK, rec.Code)
		require.JSONEq(t, fmt.Sprintf(`{"value":%q}`, sent["challengeValue"]), rec.Body.String())
		for name, rec := range map[string]*httptest.ResponseRecorder{
			"no secret":      ask("GET", current),
			"another secret": ask("GET", current, secret[1:]+"0"),
			"two secrets":    ask("GET", current, secret, secret),
			"empty secret":   ask("GET", current, ""),
		} {
			require.Equal(t, http.StatusForbidden, rec.Code, name)
			require.NotContains(t, rec.Body.String(), sent["challengeValue"], name)
		}
		require.Equal(t, http.StatusNotFound, ask("GET", "another", secret).Code)
		require.Equal(t, http.StatusNotFound, ask("GET", "", secret).Code)
		require.Equal(t, http.StatusMethodNotAllowed, ask("POST", current, secret).Code)
		h.after(3 * time.Second)
		require.Equal(t, http.StatusNotFound, ask("GET", current, secret).Code, "only the newest is answered")
	})
}

func TestTheStatsRoute(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, map[string]Constructor{"/c": working, "/idle": echo}, func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(2 * time.Second)
		r := httptest.NewRequest(http.MethodGet, wire.PathStats, nil)
		require.Equal(t, http.StatusForbidden, h.do(r).Code)
		r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{Audience: "another session"}))
		require.Equal(t, http.StatusForbidden, h.do(r).Code)
		r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{}))
		require.Equal(t, http.StatusOK, h.do(r).Code)
		r.Header.Del(wire.HeaderAttestation)
		r.Header.Set(wire.HeaderProxySecret, h.w.reg.secret.Reveal())
		rec := h.do(r)
		require.Equal(t, http.StatusOK, rec.Code)
		require.JSONEq(t, fmt.Sprintf(`{
			"draining": false, "leaseFlaps": 0, "reregistrations": 0,
			"namespaces": {"/c": {"activations": 1, "evictions": 0}, "/idle": {"activations": 0, "evictions": 0}},
			"instances": [{"namespace": "/c", "id": "1", "connections": 0, "tasks": 1, "idleMs": 2000, "activatedAt": %d}],
			"process": {"uptimeMs": 2000}
		}`, h.now().wall.Add(-2*time.Second).UnixMilli()), rec.Body.String())
	})
}

func TestReadinessFollowsTheLeaseAndLivenessDoesNot(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		check := func(wantReady int, why string) {
			t.Helper()
			require.Equal(t, http.StatusOK, h.do(httptest.NewRequest(http.MethodGet, pathLive, nil)).Code)
			rec := h.do(httptest.NewRequest(http.MethodGet, pathReady, nil))
			require.Equal(t, wantReady, rec.Code)
			require.Contains(t, rec.Body.String(), why)
			rec = httptest.NewRecorder()
			h.w.ReadyHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/anything", nil))
			require.Equal(t, wantReady, rec.Code)
			require.Equal(t, wantReady == http.StatusOK, h.w.Ready())
		}
		check(503, "not registered")
		h.start()
		check(200, "ready")
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(14 * time.Second)
		check(200, "ready")
		h.after(time.Second)
		check(503, "expired")
		h.pb.on(nil)
		h.after(3 * time.Second)
		check(200, "ready")
	})
}

// jws signs any header and payload, right or wrong.
func jws(newHash func() hash.Hash, secret, header, payload string) string {
	input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	mac := hmac.New(newHash, []byte(secret))
	mac.Write([]byte(input))
	return input + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// A verifier that obeys the token's own alg can be talked into anything
// (benmcollins/libjwt#6, tsndr/cloudflare-worker-jwt#68).
func TestNothingIsServedWithoutAValidAttestation(t *testing.T) {
	t.Parallel()
	var seen int
	host := func(inst *Instance) (http.Handler, error) { seen++; return echo(inst) }
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		const good = `{"alg":"HS256","typ":"pinboard+jwt"}`
		secret, now := h.w.reg.secret.Reveal(), h.now().wall.Unix()
		payload := func(over string) string {
			fields := object{"aud": "session-1", "iat": now, "exp": now + 30}
			require.NoError(t, json.Unmarshal([]byte("{"+over+"}"), &fields))
			text, err := json.Marshal(fields)
			require.NoError(t, err)
			return string(text)
		}
		signed := func(header, over string) string { return jws(sha256.New, secret, header, payload(over)) }
		right := signed(good, "")
		parts := strings.Split(right, ".")
		bad := map[string]string{
			"none":                    parts[0] + "." + parts[1] + ".",
			"alg none, unsigned":      base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"pinboard+jwt"}`)) + "." + parts[1] + ".",
			"alg None, signed":        signed(`{"alg":"None","typ":"pinboard+jwt"}`, ""),
			"HS512 made right":        jws(sha512.New, secret, `{"alg":"HS512","typ":"pinboard+jwt"}`, payload("")),
			"HS512 under HS256":       jws(sha512.New, secret, good, payload("")),
			"hs256":                   signed(`{"alg":"hs256","typ":"pinboard+jwt"}`, ""),
			"typ JWT":                 signed(`{"alg":"HS256","typ":"JWT"}`, ""),
			"extra member":            signed(`{"alg":"HS256","typ":"pinboard+jwt","kid":"1"}`, ""),
			"padded signature":        right + "=",
			"four parts":              right + ".x",
			"two parts":               parts[0] + "." + parts[1],
			"exp string":              signed(good, fmt.Sprintf(`"exp":"%d"`, now+30)),
			"exp fraction":            signed(good, fmt.Sprintf(`"exp":%d.5`, now+30)),
			"exp bool":                signed(good, `"exp":true`),
			"exp 1e20":                signed(good, `"exp":1e20`),
			"iat 31 s ahead":          signed(good, fmt.Sprintf(`"iat":%d,"exp":%d`, now+31, now+61)),
			"exp 31 s ago":            signed(good, fmt.Sprintf(`"iat":%d,"exp":%d`, now-61, now-31)),
			"aud list":                signed(good, `"aud":["session-1"]`),
			"aud of another session":  signed(good, `"aud":"session-2"`),
			"aud empty":               signed(good, `"aud":""`),
			"AUD":                     signed(good, `"aud":null,"AUD":"session-1"`),
			"caller number":           signed(good, `"caller":7`),
			"depth string":            signed(good, `"caller":"/c/1","depth":"1"`),
			"acct without sub":        signed(good, `"acct":{"scopes":[]}`),
			"acct list":               signed(good, `"acct":[]`),
			"another worker's secret": jws(sha256.New, strings.Repeat("0", 64), good, payload("")),
			"empty secret":            jws(sha256.New, "", good, payload("")),
			"empty":                   "",
		}
		for i := range right {
			flipped := []byte(right)
			flipped[i] ^= 1
			bad[fmt.Sprintf("bit flipped in byte %d", i)] = string(flipped)
		}
		for name, token := range bad {
			r := httptest.NewRequest(http.MethodGet, "/c/1", nil)
			r.Header.Set(wire.HeaderAttestation, token)
			rec := h.do(r)
			require.Equal(t, http.StatusForbidden, rec.Code, name)
			require.Equal(t, `{"detail":"invalid attestation"}`, rec.Body.String(), name)
		}
		r := httptest.NewRequest(http.MethodGet, "/c/1", nil)
		require.Equal(t, http.StatusForbidden, h.do(r).Code, "no attestation")
		r.Header[wire.HeaderAttestation] = []string{right, right}
		require.Equal(t, http.StatusForbidden, h.do(r).Code, "two attestations")
		r.Header[wire.HeaderAttestation] = nil
		r.Header.Set(wire.HeaderProxySecret, secret)
		require.Equal(t, http.StatusForbidden, h.do(r).Code, "the secret itself opens no instance")
		require.Zero(t, seen)

		r.Header.Set(wire.HeaderAttestation, right)
		require.Equal(t, http.StatusOK, h.do(r).Code)
		require.Equal(t, 1, seen)
		// In time, if only just.
		for _, over := range []string{
			fmt.Sprintf(`"iat":%d,"exp":%d`, now+30, now+60), fmt.Sprintf(`"iat":%d,"exp":%d`, now-60, now-30),
		} {
			r.Header.Set(wire.HeaderAttestation, signed(good, over))
			require.Equal(t, http.StatusOK, h.do(r).Code)
		}
	})
}

func TestTheAttestationIsLookedAtBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		paths := []string{"/c/1", "/c/..", "/c/", "/c", "/", "/unknown/1", "/c/al%69ce", "/c/1/%zz", "/_pinned/other"}
		try := func() {
			t.Helper()
			for _, path := range paths {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.URL.Path, r.URL.RawPath = path, path
				r.Header.Set(wire.HeaderEpoch, "malformed")
				rec := h.do(r)
				require.Equal(t, http.StatusForbidden, rec.Code, path)
				require.Equal(t, wire.DetailInvalidAttestation, detail(t, rec), path)
			}
		}
		try() // before the registration too
		token, err := attest.Mint(h.w.reg.secret, attest.Claims{}, h.now().wall)
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodGet, "/c/1", nil)
		r.Header.Set(wire.HeaderAttestation, token)
		require.Equal(t, http.StatusForbidden, h.do(r).Code, "no session is not the session without a name")
		h.start()
		try()
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(time.Minute)
		try()
	})
}

func TestRequestsThatNameNoInstance(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		for path, want := range map[string]int{
			"/c": 400, "/c/": 400, "/c//x": 400, "/c/./x": 400, "/c/../x": 400, "/c/al%69ce": 400, "/c/a%2Fb": 400,
			"/c/%C3%A9": 400, "/c/a%20b": 400, "/c/" + strings.Repeat("a", 257): 400, "/c/" + strings.Repeat("a", 256): 200,
			"/": 404, "/d/1": 404, "//1": 404, "/%2Fc/1": 404, "/%63/1": 200, "/c/A.~_-z": 200,
		} {
			rec := h.get(path)
			require.Equal(t, want, rec.Code, "%s: %s", path, rec.Body.String())
			if want != 200 {
				require.NotEmpty(t, detail(t, rec))
			}
		}
		for _, method := range []string{http.MethodConnect, http.MethodOptions} {
			r := h.request(method, "/")
			r.URL.Path, r.RequestURI = "", "*"
			require.Equal(t, http.StatusNotFound, h.do(r).Code)
		}
	})
}

func TestThePlacementEpochIsDigits(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		for _, epochs := range [][]string{{""}, {"x"}, {"-1"}, {"+1"}, {"1.0"}, {" 1"}, {"1e3"}, {"99999999999999999999"}, {"١"}, {"1", "1"}} {
			r := h.request(http.MethodGet, "/c/1")
			r.Header[wire.HeaderEpoch] = epochs
			rec := h.do(r)
			require.Equal(t, http.StatusBadRequest, rec.Code, "%q", epochs)
			require.Equal(t, "malformed placement epoch", detail(t, rec))
			require.Empty(t, rec.Header().Get(wire.HeaderRefusal))
		}
		require.False(t, h.live("/c", "1"))
		r := h.request(http.MethodGet, "/c/1")
		r.Header.Del(wire.HeaderEpoch)
		require.Equal(t, http.StatusOK, h.do(r).Code, "none is fine")
	})
}

// seenPath is what an instance saw of a request.
func seenPath(_ *Instance, w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.RequestURI)
}

func TestAnInstanceSeesTheRestOfThePath(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "/base", "/a%2Fb/c"} {
		inBubble(t, Options{}, hosting(serving(seenPath)), func(t *testing.T, h *harness) {
			h.w.base = base
			h.start()
			h.w.base = base
			for path, want := range map[string]string{
				"/c/1":                   "/  ",
				"/c/1/":                  "/  ",
				"/c/1?a=1;b=%zz":         "/  a=1;b=%zz",
				"/c/1/value?x=%2F":       "/value  x=%2F",
				"/c/1/a%2Fb/%2F/c%2520d": "/a/b///c%20d /a%2Fb/%2F/c%2520d ",
				"/c/1//x/":               "//x/  ",
				"/c/1/%E2%82%AC":         "/€  ",
			} {
				require.Equal(t, want+" "+base+path, h.get(base+path).Body.String())
			}
		})
	}
}

// An advertise URL with a base path works whether or not the base was taken
// off before the worker.
func TestTheBasePathIsTakenOffOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ base, strip, path, want string }{
		"base that starts a namespace's name": {"/base", "", "/based/1/x", "/x"},
		"no base":                             {"", "", "/c/1/x", "/x"},
		"mounted at the root":                 {"/base", "", "/base/c/1/x", "/x"},
		"stripped before":                     {"/base", "/base", "/base/c/1/x", "/x"},
		"base named as the namespace":         {"/c", "", "/c/c/1/x", "/x"},
		"base named as the namespace, strip":  {"/c", "/c", "/c/c/1/x", "/x"},
		"base that is a prefix of a segment":  {"/b", "", "/base/c/1", ""},
		"a gateway took it off":               {"/base", "", "/c/1/x", "/x"},
		"more was stripped than advertised":   {"/base", "/outer", "/outer/base/c/1/x", "/x"},
		"two segments":                        {"/a/b", "", "/a/b/c/1", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.URL.EscapedPath())
			})
			inBubble(t, Options{}, map[string]Constructor{"/c": host, "/based": host}, func(t *testing.T, h *harness) {
				h.start()
				h.w.base = tc.base
				rec := httptest.NewRecorder()
				http.StripPrefix(tc.strip, h.w).ServeHTTP(rec, h.request(http.MethodGet, tc.path))
				if tc.want == "" {
					require.Equal(t, http.StatusNotFound, rec.Code)
				} else {
					require.Equal(t, tc.want, rec.Body.String())
				}
				h.w.base = ""
			})
		})
	}
}

func TestAnInstanceWorksWithAServeMux(t *testing.T) {
	t.Parallel()
	host := func(inst *Instance) (http.Handler, error) {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "root of "+inst.ID()) })
		mux.HandleFunc("GET /items/{item}", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.PathValue("item")) })
		return mux, nil
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, "root of 1", h.get("/c/1").Body.String())
		require.Equal(t, "root of 1", h.get("/c/1/").Body.String())
		require.Equal(t, "a/b", h.get("/c/1/items/a%2Fb").Body.String())
		require.Equal(t, http.StatusNotFound, h.get("/c/1/other").Code)
	})
}

func TestAnInstanceDoesNotSeePinboardsHeaders(t *testing.T) {
	t.Parallel()
	var got http.Header
	inBubble(t, Options{}, hosting(serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) { got = r.Header })), func(t *testing.T, h *harness) {
		h.start()
		r := h.request(http.MethodGet, "/c/1")
		r.Header.Set("X-Mine", "1")
		r.Header["pinned_odd"] = []string{"1"}
		before := r.Header.Clone()
		h.do(r)
		require.Equal(t, http.Header{"X-Mine": {"1"}}, got)
		require.Equal(t, before, r.Header, "the caller's own request is left as it is")
	})
}

// By a marker that an application passes on from elsewhere pinboard would give up an
// id that has a live instance, and have the request carried out once more.
func TestAnAnswerOfAnApplicationsIsNoRefusal(t *testing.T) {
	t.Parallel()
	relays := func(w http.ResponseWriter) {
		w.Header()["pinned_refusal"] = []string{wire.RefusalExpired}
		w.Header().Set(wire.HeaderRefusal, wire.RefusalCapacity)
		w.Header().Set("X-Mine", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	relaying := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flushed" {
			w.Header().Set(wire.HeaderRefusal, wire.RefusalCapacity)
			w.(http.Flusher).Flush()
		}
		relays(w)
	})
	middleware := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/own":
				relays(w)
			case "/instead":
				next.ServeHTTP(httptest.NewRecorder(), r)
				relays(w)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}
	for path, opts := range map[string]HostOptions{
		"/c/1/": {}, "/c/1/flushed": {}, "/c/1/passed": {Middleware: middleware}, "/c/1/own": {Middleware: middleware}, "/c/1/instead": {Middleware: middleware},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, nil, func(t *testing.T, h *harness) {
				opts.MaxInstances = 1
				require.NoError(t, h.w.HostWith("/c", opts, relaying))
				h.start()
				h.get("/c/1/")
				head := h.get(path).Result().Header
				for name := range head {
					require.False(t, wire.Reserved(name), name)
				}
				if path != "/c/1/flushed" {
					require.Equal(t, "1", head.Get("X-Mine"))
				}
				refused(t, h.get("/c/2/"), wire.RefusalCapacity)
			})
		})
	}
}

func TestCallerFrom(t *testing.T) {
	t.Parallel()
	var got Caller
	var known bool
	host := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) { got, known = CallerFrom(r.Context()) })
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		for name, tc := range map[string]struct {
			claims attest.Claims
			want   Caller
		}{
			"anonymous": {attest.Claims{}, Caller{}},
			"account": {
				attest.Claims{Account: &attest.Account{Subject: "ada", Scopes: []string{"chat"}, Claims: map[string]any{"org": "x"}}},
				Caller{Account: &CallerAccount{Subject: "ada", Scopes: []string{"chat"}, Claims: map[string]any{"org": "x"}}},
			},
			"instance":                   {attest.Claims{Caller: "/d/7", Depth: 3}, Caller{Instance: &CallerInstance{Namespace: "/d", ID: "7", Depth: 3}}},
			"caller without an id":       {attest.Claims{Caller: "/d/"}, Caller{}},
			"caller without a namespace": {attest.Claims{Caller: "/d"}, Caller{}},
			"caller that is no path":     {attest.Claims{Caller: "d"}, Caller{}},
		} {
			r := h.request(http.MethodGet, "/c/1")
			r.Header.Set(wire.HeaderAttestation, h.mint(tc.claims))
			require.Equal(t, http.StatusOK, h.do(r).Code)
			require.Equal(t, tc.want, got, name)
			require.Equal(t, tc.want != Caller{}, known, name)
		}
		_, known := CallerFrom(context.Background())
		require.False(t, known)
	})
}
