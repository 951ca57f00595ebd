package pinboard

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// What docs/threats.md says is only as true as the tests that it names.
func TestTheThreatModelNamesTestsThatThereAre(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("docs", "threats.md"))
	require.NoError(t, err)
	names := regexp.MustCompile(`\b(Test|Fuzz)[A-Z][A-Za-z0-9]+`).FindAllString(string(text), -1)
	require.Greater(t, len(names), 40)
	var tests bytes.Buffer
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	}))
	for _, name := range names {
		require.True(t, bytes.Contains(tests.Bytes(), []byte("func "+name+"(")), "docs/threats.md names %s", name)
	}
	for _, match := range regexp.MustCompile("`((?:internal|passport|worker|cmd|examples)/[^` ]*)`").FindAllStringSubmatch(string(text), -1) {
		require.FileExists(t, match[1], "docs/threats.md")
	}
}

// A static token is changed while everybody works: first the nodes learn the
// new one, then workers and operators change, then the nodes forget the old one.
func TestAStaticTokenIsChangedWithoutAnOutage(t *testing.T) {
	t.Parallel()
	const before, after = tokenWorker, "planted-token-of-next-year"
	knowing := func(tokens ...string) passport.Passport {
		var keys []string
		for i, token := range tokens {
			keys = append(keys, fmt.Sprintf(`{"name": "deployment-%d", "token": %q, "scopes": ["pinboard:worker"],
				"claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}}`, i, token))
		}
		p, err := passport.Parse([]byte(`{"providers": [{"type": "staticToken", "id": "p", "keys": [`+strings.Join(keys, ",")+`]}]}`), nil)
		require.NoError(t, err)
		return p
	}
	store := MemoryStore()
	node := func(tokens ...string) *regNode {
		return serveRegNode(t, Options{Store: store, Passport: knowing(tokens...)})
	}
	old, both, next := node(before), node(before, after), node(after)
	w := both.worker()
	w.register()
	beat := func(n *regNode, token string) int { return n.post("/registry/heartbeat", token, w.beat()).status }
	require.Equal(t, http.StatusOK, beat(old, before), "some nodes know only the old one")
	require.Equal(t, http.StatusOK, beat(both, before))
	require.Equal(t, http.StatusOK, beat(both, after), "the session is not the token's")
	require.Equal(t, http.StatusOK, beat(next, after), "some nodes know only the new one")
	require.Equal(t, http.StatusUnauthorized, beat(next, before))
	require.Equal(t, http.StatusUnauthorized, beat(old, after), "which is why the nodes come first")
	require.Equal(t, http.StatusOK, beat(next, after), "a 401 has cost nobody the session")
}

// A worker's token opens its namespaces, not only its own session: whoever
// holds one may end every session there, if he knows its id.
func TestOnlyWhoKnowsASessionCanTouchIt(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, hostile := n.worker(), n.worker()
	w.register(fields{"instances": fields{"/a": []string{"x"}}})
	hostile.register(fields{"instances": fields{"/a": []string{"x"}}})
	owner, _ := n.owner("/a", "x")
	require.Equal(t, w.session, owner, "what lives elsewhere can't be claimed")
	for _, guess := range []string{"", hostile.session, w.client, strings.ToLower(w.session), w.session[:25]} {
		n.post("/registry/deregister", tokenWorker, fields{"sessionId": guess})
		n.post("/registry/release", tokenWorker, fields{"sessionId": guess, "namespace": "/a", "id": "x"})
	}
	owner, _ = n.owner("/a", "x")
	require.Equal(t, w.session, owner)
	require.Equal(t, http.StatusOK, w.heartbeat().status)
}
