package passport_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

const planted = "planted-0123456789abcdef"

// keys returns a document with one provider with these keys.
func keys(list ...string) string {
	return `{"providers": [{"type": "staticToken", "id": "p", "keys": [` + strings.Join(list, ", ") + `]}]}`
}

// claims returns one with a key that has these claims.
func claims(text string) string {
	return keys(`{"name": "k", "token": "` + planted + `", "claims": ` + text + `}`)
}

func policies(text string) string {
	return `{"providers": [{"type": "staticToken", "id": "p", "keys": [{"name": "k", "token": "` + planted + `"}]}], "namespaces": ` + text + `}`
}

func requireFaults(t *testing.T, text string, places ...string) {
	t.Helper()
	p, err := passport.Parse([]byte(text), environment)
	require.Error(t, err, text)
	require.Nil(t, p)
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, len(places), "%v", err)
	for _, place := range places {
		found := false
		for _, line := range lines {
			found = found || strings.HasPrefix(line, place+": ")
		}
		require.True(t, found, "%q is not among:\n%v", place, err)
	}
	for _, secret := range []string{planted, deployToken} {
		require.NotContains(t, err.Error(), secret)
	}
}

func TestFaultNamesItsPlace(t *testing.T) {
	t.Parallel()
	good := `"name": "k", "token": "` + planted + `"`
	second := `{"name": "k2", "token": "t2"}`
	provider := `{"type": "staticToken", "id": "p", "keys": [{` + good + `}]}`
	for place, texts := range map[string][]string{
		"the document": {
			``, ` `, `null`, `1`, `"x"`, `[]`, `{`, `{}}`, `{} {}`, `{"providers": [],}`, "{\"providers\": \"\xff\"}",
			`{"providers": [` + planted + `]}`, keys(`{` + good), strings.Repeat(`{"a":`, 20_000),
		},
		"provider":       {`{"provider": []}`},
		"Providers":      {`{"Providers": []}`},
		`["pro viders"]`: {`{"pro viders": []}`},
		"providers":      {`{"providers": null}`, `{"providers": {}}`, `{"providers": "x"}`, `{"providers": [], "providers": []}`},
		"providers[0]":   {`{"providers": [null]}`, `{"providers": ["x"]}`, `{"providers": [[]]}`},
		"providers[0].type": {
			`{"providers": [{"id": "p"}]}`,
			`{"providers": [{"type": "oidc", "id": "users", "issuer": "x"}]}`,
			`{"providers": [{"type": 1, "id": "p"}]}`,
			`{"providers": [{"type": "statictoken", "id": "p"}]}`,
			`{"providers": [{"type": null, "id": "p"}]}`,
		},
		"providers[0].id": {
			strings.Replace(keys(second), `"p"`, `""`, 1),
			strings.Replace(keys(second), `"p"`, `7`, 1),
			strings.Replace(keys(second), `"id": "p", `, ``, 1),
		},
		"providers[1].id":  {`{"providers": [` + provider + `, {"type": "staticToken", "id": "p", "keys": [` + second + `]}]}`},
		"providers[0].key": {strings.Replace(keys(second), `"keys"`, `"key": 1, "keys"`, 1)},
		"providers[0].keys": {
			strings.Replace(keys(), `, "keys": []`, ``, 1),
			keys(),
			strings.Replace(keys(), `[]}]`, `{}}]`, 1),
			strings.Replace(keys(), `[]}]`, `null}]`, 1),
		},
		"providers[0].issuer": {strings.Replace(keys(second), `"keys"`, `"issuer": "x", "keys"`, 1)},

		"providers[0].keys[0]": {keys(`null`), keys(`"x"`), keys(`[]`)},
		"providers[0].keys[0].name": {
			keys(`{"token": "` + planted + `"}`),
			keys(`{"name": "", "token": "` + planted + `"}`),
			keys(`{"name": 1, "token": "` + planted + `"}`),
			keys(`{"name": "a", ` + good + `}`),
		},
		"providers[0].keys[1].name":   {keys(`{`+good+`}`, `{"name": "k", "token": "t2"}`)},
		"providers[0].keys[0].tokens": {keys(`{` + good + `, "tokens": "` + planted + `x"}`)},
		"providers[0].keys[0].Token":  {keys(`{` + good + `, "Token": "` + planted + `"}`)},
		"providers[0].keys[0].scopes": {
			keys(`{` + good + `, "scopes": "x"}`),
			keys(`{` + good + `, "scopes": null}`),
			keys(`{` + good + `, "scopes": {}}`),
		},
		"providers[0].keys[0].scopes[1]": {
			keys(`{` + good + `, "scopes": ["x", 1]}`),
			keys(`{` + good + `, "scopes": ["x", ""]}`),
			keys(`{` + good + `, "scopes": ["x", null]}`),
		},
		"providers[0].keys[0].token": {
			keys(`{"name": "k"}`), keys(`{"name": "k", "token": ""}`), keys(`{"name": "k", "token": null}`), keys(`{"name": "k", "token": 12345}`),
			keys(`{"name": "k", "token": ["` + planted + `"]}`), keys(`{"name": "k", "token": {}}`), keys(`{"name": "k", "token": {"` + planted + `": "x"}}`),
			keys(`{"name": "k", "token": {"env": 1}}`), keys(`{"name": "k", "token": {"env": ""}}`), keys(`{"name": "k", "token": {"env": "PINBOARD_TOKEN", "default": "` + planted + `"}}`),
			keys(`{"name": "k", "token": {"env": "UNSET_TOKEN"}}`), keys(`{"name": "k", "token": {"env": "EMPTY_TOKEN"}}`), keys(`{"name": "k", "token": {"env": "` + planted + `"}}`),
			keys(`{"name": "k", "token": {"env": "FILE_TOKEN"}}`), keys(`{"name": "k", "token": "` + planted + ` x"}`), keys(`{"name": "k", "token": "` + planted + `é"}`),
			keys(`{"name": "k", "token": "` + planted + `\u0000"}`), keys(`{"name": "k", "token": "` + planted + `", "token": "` + planted + `"}`),
		},
		"providers[0].keys[1].token": {
			keys(`{`+good+`}`, `{"name": "k2", "token": "`+planted+`"}`),
			keys(`{"name": "k", "token": {"env": "PINBOARD_TOKEN"}}`, `{"name": "k2", "token": "`+deployToken+`"}`),
		},
		"providers[1].keys[0].token": {
			`{"providers": [` + provider + `, {"type": "staticToken", "id": "q", "keys": [{"name": "k2", "token": "` + planted + `"}]}]}`,
		},

		"providers[0].keys[0].claims":               {claims(`null`), claims(`[]`), claims(`"x"`)},
		`providers[0].keys[0].claims.a["b c"][1].d`: {claims(`{"a": {"b c": [0, {"d": 1, "d": 2}]}}`)},
		"providers[0].keys[0].claims.pinboard": {
			claims(`{"pinboard": null}`),
			claims(`{"pinboard": ["*"]}`),
			claims(`{"pinboard": {}, "pinboard": {}}`),
		},
		"providers[0].keys[0].claims.pinboard.allowedBackendHost": {claims(`{"pinboard": {"allowedBackendHost": ["*"]}}`)},
		"providers[0].keys[0].claims.pinboard.namespaces": {
			claims(`{"pinboard": {"namespaces": "*"}}`),
			claims(`{"pinboard": {"namespaces": null}}`),
		},
		"providers[0].keys[0].claims.pinboard.namespaces[1]": {
			claims(`{"pinboard": {"namespaces": ["*", 1]}}`),
			claims(`{"pinboard": {"namespaces": ["*", "a/b"]}}`),
			claims(`{"pinboard": {"namespaces": ["*", ""]}}`),
		},
		"providers[0].keys[0].claims.pinboard.allowedBackendHosts": {claims(`{"pinboard": {"allowedBackendHosts": {"*": true}}}`)},
		"providers[0].keys[0].claims.pinboard.allowedBackendHosts[0]": {
			claims(`{"pinboard": {"allowedBackendHosts": ["http://x"]}}`),
			claims(`{"pinboard": {"allowedBackendHosts": [null]}}`),
			claims(`{"pinboard": {"allowedBackendHosts": ["10.0.0.0/33"]}}`),
		},

		"namespaces": {policies(`null`), policies(`[]`), policies(`"*"`)},
		`namespaces["/a"]`: {
			policies(`{"/a": null}`),
			policies(`{"/a": "anonymous"}`),
			policies(`{"/a": {"allow": "anonymous", "scopes": ["x"]}}`),
			policies(`{"/a": {"allow": "anonymous", "providers": ["p"]}}`),
			policies(`{"/a": {"allow": "anonymous"}, "/a": {"allow": "anonymous"}}`),
		},
		`namespaces["/a"].allow`: {
			policies(`{"/a": {}}`),
			policies(`{"/a": {"allow": "everyone"}}`),
			policies(`{"/a": {"allow": "Anonymous"}}`),
			policies(`{"/a": {"allow": null}}`),
			policies(`{"/a": {"allow": true}}`),
		},
		`namespaces["/a"].allowedOrigins`: {policies(`{"/a": {"allow": "anonymous", "allowedOrigins": "https://a.example"}}`)},
		`namespaces["/a"].allowedOrigins[1]`: {
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", 1]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", ""]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "*"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "null"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://b.example/"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://B.example"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "HTTPS://b.example"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://b.example:443"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "http://b.example:80"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://u@b.example"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://*.b.example"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "b.example"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://"]}}`),
			policies(`{"/a": {"allow": "anonymous", "allowedOrigins": ["https://a.example", "https://a.example\nhttps://b.example"]}}`),
		},
		`namespaces["/a"].allowed`: {policies(`{"/a": {"allow": "anonymous", "allowed": 1}}`)},
		`namespaces["/a"].providers`: {
			policies(`{"/a": {"allow": "authenticated", "providers": "p"}}`),
			policies(`{"/a": {"allow": "authenticated", "providers": []}}`),
		},
		`namespaces["/a"].providers[1]`: {
			policies(`{"/a": {"allow": "authenticated", "providers": ["p", "q"]}}`),
			policies(`{"/a": {"allow": "authenticated", "providers": ["p", 1]}}`),
			policies(`{"/a": {"allow": "authenticated", "providers": ["p", ""]}}`),
		},
		`namespaces["/a"].scopes`:    {policies(`{"/a": {"allow": "authenticated", "scopes": "x"}}`)},
		`namespaces["/a"].scopes[0]`: {policies(`{"/a": {"allow": "authenticated", "scopes": [1]}}`)},
		`namespaces.x`:               {policies(`{"/x": {"allow": "anonymous"}, "x": {"allow": "authenticated"}}`)},
		`namespaces["x*"]`:           {policies(`{"/x*": {"allow": "anonymous"}, "x*": {"allow": "authenticated"}}`)},
		`namespaces["*"]`:            {policies(`{"/*": {"allow": "anonymous"}, "*": {"allow": "authenticated"}}`)},
		`namespaces[""]`:             {policies(`{"": {"allow": "anonymous"}}`)},
		`namespaces["/"]`:            {policies(`{"/": {"allow": "anonymous"}}`)},
		`namespaces["**"]`:           {policies(`{"**": {"allow": "anonymous"}}`)},
		`namespaces["/a*b"]`:         {policies(`{"/a*b": {"allow": "anonymous"}}`)},
		`namespaces["a*b*"]`:         {policies(`{"a*b*": {"allow": "anonymous"}}`)},
		`namespaces["/a/b"]`:         {policies(`{"/a/b": {"allow": "anonymous"}}`)},
		`namespaces["a/*"]`:          {policies(`{"a/*": {"allow": "anonymous"}}`)},
		`namespaces["//a"]`:          {policies(`{"//a": {"allow": "anonymous"}}`)},
		`namespaces["a b"]`:          {policies(`{"a b": {"allow": "anonymous"}}`)},
		`namespaces.registry`:        {policies(`{"registry": {"allow": "anonymous"}}`)},
		`namespaces["_*"]`:           {policies(`{"_*": {"allow": "anonymous"}}`)},
	} {
		for i, text := range texts {
			t.Run(fmt.Sprintf("%s %d", place, i), func(t *testing.T) {
				t.Parallel()
				requireFaults(t, text, place)
			})
		}
	}
}

func TestOneStartShowsEveryFault(t *testing.T) {
	t.Parallel()
	requireFaults(t, `{"provider": 1, "providers": [
	   {"type": "staticToken", "id": "p", "extra": 1, "keys": [
	      {"name": "k", "token": {"env": "UNSET_TOKEN"}, "scopes": 1, "claims": {"pinboard": {"namespaces": ["a/b"], "allowedBackendHosts": ["x y"]}}},
	      {"name": "k", "token": ""}, 7]},
	   {"type": "oidc", "id": "users"},
	   {"type": "staticToken", "id": "users", "keys": []}],
	  "namespaces": {"/a": {"allow": "authenticated", "providers": ["users", "nobody"]}, "a": {"allow": "maybe"}}}`,
		"provider", "providers[0].extra", "providers[0].keys[0].token", "providers[0].keys[0].scopes",
		"providers[0].keys[0].claims.pinboard.namespaces[0]", "providers[0].keys[0].claims.pinboard.allowedBackendHosts[0]",
		"providers[0].keys[1].name", "providers[0].keys[1].token", "providers[0].keys[2]", "providers[1].type", "providers[2].id", "providers[2].keys",
		`namespaces["/a"].providers[1]`, "namespaces.a.allow", "namespaces.a")
}

func TestVariableIsNamedOnlyIfItLooksLikeOne(t *testing.T) {
	t.Parallel()
	_, err := passport.Parse([]byte(keys(`{"name": "k", "token": {"env": "UNSET_TOKEN"}}`)), environment)
	require.EqualError(t, err, "providers[0].keys[0].token: the environment variable UNSET_TOKEN is not set")
	_, err = passport.Parse([]byte(keys(`{"name": "k", "token": {"env": "`+planted+`"}}`)), environment)
	require.EqualError(t, err, "providers[0].keys[0].token: the environment variable that it names is not set")
}

func TestMalformedJSONIsNamedByLine(t *testing.T) {
	t.Parallel()
	_, err := passport.Parse([]byte("{\n \"providers\": [],\n \"x\": \""+planted+"\\q\"}"), environment)
	require.ErrorContains(t, err, "the document: is not valid JSON at line 3, byte ")
	require.NotContains(t, err.Error(), planted)
}
