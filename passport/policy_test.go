package passport_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

const namespaces = `{"providers": [
  {"type": "staticToken", "id": "users", "keys": [{"name": "u", "token": "u"}]},
  {"type": "staticToken", "id": "bots", "keys": [{"name": "b", "token": "b"}]}],
 "namespaces": {
  "/open": {"allow": "anonymous"},
  "room*": {"allow": "authenticated"},
  "/room-vip*": {"allow": "authenticated", "scopes": ["vip", "paid"]},
  "/room-vip-lobby": {"allow": "anonymous"},
  "bots": {"allow": "authenticated", "providers": ["bots"]},
  "both": {"allow": "authenticated", "providers": ["users", "bots"], "scopes": []}%s}}`

func TestPolicyDecidesWhoIsAdmitted(t *testing.T) {
	t.Parallel()
	user := &passport.Identity{Provider: "users", Subject: "u"}
	vip := &passport.Identity{Provider: "users", Subject: "v", Scopes: []string{"paid", "other", "vip"}}
	half := &passport.Identity{Provider: "users", Subject: "h", Scopes: []string{"vip"}}
	bot := &passport.Identity{Provider: "bots", Subject: "b"}
	guest := &passport.Identity{}
	p := parse(t, fmt.Sprintf(namespaces, ""))
	const ok, who, no = "", "who", "no"
	for _, c := range []struct {
		namespace                           string
		anonymous, user, vip, half, bot, by string
	}{
		{"/open", ok, ok, ok, ok, ok, ok},
		{"/room", who, ok, ok, ok, ok, ok},
		{"/rooms", who, ok, ok, ok, ok, ok},
		{"/room-vi", who, ok, ok, ok, ok, ok},
		{"/room-vip", who, no, ok, no, no, no},
		{"/room-vip-2", who, no, ok, no, no, no},
		{"/room-vip-lobby", ok, ok, ok, ok, ok, ok},
		{"/room-vip-lobby2", who, no, ok, no, no, no},
		{"/bots", who, no, no, no, ok, no},
		{"/both", who, ok, ok, ok, ok, no},
		{"/bots2", who, no, no, no, no, no}, // no policy
		{"/roo", who, no, no, no, no, no},
		{"/OPEN", who, no, no, no, no, no},
		{"open", who, no, no, no, no, no}, // not a namespace
		{"", who, no, no, no, no, no},
	} {
		for i, want := range []string{c.anonymous, c.user, c.vip, c.half, c.bot, c.by} {
			caller := []*passport.Identity{nil, user, vip, half, bot, guest}[i]
			err := p.Admit(t.Context(), c.namespace, caller)
			switch want {
			case ok:
				require.NoError(t, err, "%s %+v", c.namespace, caller)
			case who:
				require.ErrorIs(t, err, passport.ErrUnauthenticated, "%s %+v", c.namespace, caller)
			case no:
				require.ErrorIs(t, err, passport.ErrForbidden, "%s %+v", c.namespace, caller)
			}
		}
	}
}

func TestStarRulesWhatNothingElseDoes(t *testing.T) {
	t.Parallel()
	for _, star := range []string{"*", "/*"} {
		p := parse(t, fmt.Sprintf(namespaces, `, "`+star+`": {"allow": "anonymous"}`))
		require.NoError(t, p.Admit(t.Context(), "/anything", nil))
		require.ErrorIs(t, p.Admit(t.Context(), "/room1", nil), passport.ErrUnauthenticated)
		require.ErrorIs(t, p.Admit(t.Context(), "/bots", nil), passport.ErrUnauthenticated)
		require.ErrorIs(t, p.Admit(t.Context(), "/room-vip", nil), passport.ErrUnauthenticated)
	}
}

func TestWithoutPoliciesNobodyIsAdmitted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, `{"namespaces": {}}`, keys(`{"name": "k", "token": "t"}`)} {
		p := parse(t, text)
		require.ErrorIs(t, p.Admit(t.Context(), "/a", nil), passport.ErrUnauthenticated)
		require.ErrorIs(t, p.Admit(t.Context(), "/a", &passport.Identity{Provider: "p"}), passport.ErrForbidden)
	}
}

// The order of a document's policies must not matter.
func TestLongestPrefixRulesInWhateverOrder(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"*": {"allow": "authenticated"}, "a*": {"allow": "authenticated"}, "ab*": {"allow": "anonymous"}, "abc*": {"allow": "authenticated"}}`,
		`{"abc*": {"allow": "authenticated"}, "ab*": {"allow": "anonymous"}, "a*": {"allow": "authenticated"}, "*": {"allow": "authenticated"}}`,
		`{"ab*": {"allow": "anonymous"}, "*": {"allow": "authenticated"}, "abc*": {"allow": "authenticated"}, "a*": {"allow": "authenticated"}}`,
	} {
		p := parse(t, `{"namespaces": `+text+`}`)
		for namespace, open := range map[string]bool{"/a": false, "/ab": true, "/abb": true, "/abc": false, "/abcd": false, "/b": false} {
			require.Equal(t, open, p.Admit(t.Context(), namespace, nil) == nil, namespace)
		}
	}
}
