package passport_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

func claimed(t *testing.T, text string) *passport.Identity {
	t.Helper()
	who := &passport.Identity{}
	require.NoError(t, json.Unmarshal([]byte(text), &who.Claims))
	return who
}

func TestNamespacesOfTheClaimAreAllowed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`["*"]`:               {"/a", "/chat", "/chat-1", "/b"},
		`["/*"]`:              {"/a", "/chat", "/chat-1", "/b"},
		`["/a"]`:              {"/a"},
		`["a", "chat*"]`:      {"/a", "/chat", "/chat-1"},
		`["/chat-*", "/a"]`:   {"/a", "/chat-1"},
		`["/A", "/cha", "c"]`: {},
		`[]`:                  {},
	} {
		who := claimed(t, `{"pinboard": {"namespaces": `+text+`}}`)
		got := []string{}
		for _, namespace := range []string{"/a", "/chat", "/chat-1", "/b"} {
			if who.AllowsNamespace(namespace) {
				got = append(got, namespace)
			}
		}
		require.Equal(t, want, got, text)
	}
}

func TestMissingOrMalformedClaimAllowsNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`null`, `{}`, `{"pinboard": null}`, `{"pinboard": "*"}`, `{"pinboard": ["*"]}`, `{"pinboard": {}}`, `{"Pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}`,
		`{"namespaces": ["*"], "allowedBackendHosts": ["*"]}`, `{"pinboard": {"Namespaces": ["*"], "AllowedBackendHosts": ["*"]}}`,
		`{"pinboard": {"namespaces": "*", "allowedBackendHosts": "*"}}`, `{"pinboard": {"namespaces": ["*", 1], "allowedBackendHosts": ["*", null]}}`,
		`{"pinboard": {"namespaces": {"*": "*"}, "allowedBackendHosts": {"0": "*"}}}`, `{"pinboard": {"namespaces": [["*"]], "allowedBackendHosts": [["*"]]}}`,
	} {
		who := claimed(t, text)
		require.False(t, who.AllowsNamespace("/a"), text)
		require.Empty(t, who.BackendHosts(), text)
	}
	var nobody *passport.Identity
	require.False(t, nobody.AllowsNamespace("/a"))
	require.Nil(t, nobody.BackendHosts())
	for _, text := range []string{`["*", "a/b"]`, `["a*b", "*"]`, `["*", ""]`, `["*", "_x"]`} {
		require.False(t, claimed(t, `{"pinboard": {"namespaces": `+text+`}}`).AllowsNamespace("/a"), text)
	}
}

func TestClaimsOfAHostsOwnPassportMayBeGoLists(t *testing.T) {
	t.Parallel()
	list := []string{"/a", "b*"}
	who := &passport.Identity{Claims: map[string]any{"pinboard": map[string]any{"namespaces": list, "allowedBackendHosts": list}}}
	require.True(t, who.AllowsNamespace("/a"))
	require.True(t, who.AllowsNamespace("/bcd"))
	require.False(t, who.AllowsNamespace("/c"))
	hosts := who.BackendHosts()
	require.Equal(t, list, hosts)
	hosts[0] = "*"
	require.Equal(t, "/a", list[0], "the claim itself was handed out")
}

func TestClaimsOfADocumentAreObeyed(t *testing.T) {
	t.Parallel()
	who := identify(t, parse(t, claims(`{"pinboard": {"namespaces": ["chat*"], "allowedBackendHosts": ["10.0.0.0/8", "*.svc"]}, "more": {"x": [1, null]}}`)),
		"Bearer "+planted)
	require.True(t, who.AllowsNamespace("/chat-1"))
	require.False(t, who.AllowsNamespace("/counters"))
	require.Equal(t, []string{"10.0.0.0/8", "*.svc"}, who.BackendHosts())
	text, err := json.Marshal(who.Claims)
	require.NoError(t, err)
	require.JSONEq(t, `{"pinboard": {"namespaces": ["chat*"], "allowedBackendHosts": ["10.0.0.0/8", "*.svc"]}, "more": {"x": [1, null]}}`, string(text))
}
