package passport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/passport"
)

const (
	deployToken = "deploy-0123456789abcdef"
	chatToken   = "chat-0123456789abcdef"
)

const document = `{"providers": [
   {"type": "staticToken", "id": "pinboard",
    "keys": [{"name": "deployment", "token": {"env": "PINBOARD_TOKEN"},
              "scopes": ["pinboard:worker", "pinboard:operator"],
              "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}, "id": 9007199254740993}}]},
   {"type": "staticToken", "id": "bots",
    "keys": [{"name": "deployment", "token": "` + chatToken + `", "scopes": ["chat"]}, {"name": "bare", "token": "bare-token"}]}],
 "namespaces": {"/counters": {"allow": "anonymous"},
                "/threads":  {"allow": "authenticated", "providers": ["bots"], "scopes": ["chat"]},
                "*":         {"allow": "authenticated"}}}`

func environment(name string) (string, bool) {
	values := map[string]string{"PINBOARD_TOKEN": deployToken, "EMPTY_TOKEN": "", "FILE_TOKEN": deployToken + "\n"}
	value, ok := values[name]
	return value, ok
}

func parse(t *testing.T, text string) *passport.Standard {
	t.Helper()
	p, err := passport.Parse([]byte(text), environment)
	require.NoError(t, err)
	return p
}

// request returns one with the Authorization lines given. Its body, which is a worker's,
// must not be read.
func request(t *testing.T, lines ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/counters/alice", unreadable{})
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, line := range lines {
		r.Header.Add("Authorization", line)
	}
	return r
}

type unreadable struct{}

func (unreadable) Read([]byte) (int, error) { panic("the body was read") }

func identify(t *testing.T, p passport.Passport, lines ...string) *passport.Identity {
	t.Helper()
	r := request(t, lines...)
	before := r.Header.Clone()
	who, err := p.Identify(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, before, r.Header, "the request was changed")
	return who
}

func TestStaticTokenIsKnownByItsKey(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	require.Equal(t, &passport.Identity{
		Provider: "pinboard", Subject: "deployment", Scopes: []string{"pinboard:worker", "pinboard:operator"},
		Claims: map[string]any{
			"pinboard": map[string]any{"namespaces": []any{"*"}, "allowedBackendHosts": []any{"*"}},
			"id":       json.Number("9007199254740993"),
		},
		HideHeaders: []string{"Authorization"},
	}, identify(t, p, "Bearer "+deployToken))
	require.Equal(t, &passport.Identity{
		Provider: "bots", Subject: "deployment", Scopes: []string{"chat"}, HideHeaders: []string{"Authorization"},
	}, identify(t, p, "Bearer "+chatToken))
	require.Equal(t, &passport.Identity{Provider: "bots", Subject: "bare", HideHeaders: []string{"Authorization"}},
		identify(t, p, "Bearer bare-token"))
}

func TestSchemeCountsInAnyCase(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	for _, line := range []string{"bearer " + chatToken, "BEARER " + chatToken, "bEaReR  " + chatToken, "Bearer " + chatToken + " "} {
		require.NotNil(t, identify(t, p, line), line)
	}
}

func TestAnythingElseIsNoCredential(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	for _, lines := range [][]string{
		nil, {""}, {" "}, {"Bearer"}, {"Bearer "}, {chatToken}, {"Bearer" + chatToken}, {"Bearer\t" + chatToken}, {"Basic " + chatToken},
		{"Bearer " + chatToken[1:]}, {"Bearer " + chatToken + "x"}, {"Bearer " + strings.ToUpper(chatToken)}, {"Bearer x " + chatToken},
		{"Bearer " + chatToken + ", Bearer x"}, {"Bearer \"" + chatToken + "\""}, {"Bearer " + strings.Repeat("x", 1<<16)},
		{"\u212aBearer " + chatToken}, {"Bearer Bearer " + chatToken},
	} {
		require.Nil(t, identify(t, p, lines...), "%q", lines)
	}
	r := request(t)
	r.Header.Set("Proxy-Authorization", "Bearer "+chatToken)
	r.Header.Set("Cookie", "Authorization="+chatToken)
	who, err := p.Identify(t.Context(), r)
	require.NoError(t, err)
	require.Nil(t, who)
}

func TestTwoAuthorizationLinesAreNoCredential(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	good := "Bearer " + chatToken
	for _, lines := range [][]string{{good, good}, {good, "Basic x"}, {"Basic x", good}, {good, ""}, {"", good}} {
		require.Nil(t, identify(t, p, lines...), "%q", lines)
	}
}

func TestPassportWithoutProvidersKnowsNobody(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, `{"providers": []}`, `{"namespaces": {}}`, ` {"providers": [], "namespaces": {}} `} {
		require.Nil(t, identify(t, parse(t, text), "Bearer "+chatToken), text)
	}
}

func TestEnvironmentOfTheProcessIsTheDefault(t *testing.T) {
	t.Setenv("PINBOARD_TOKEN", "from-the-process")
	p, err := passport.Parse([]byte(document), nil)
	require.NoError(t, err)
	require.NotNil(t, identify(t, p, "Bearer from-the-process"))
	require.Nil(t, identify(t, p, "Bearer "+deployToken))
}

func TestIdentityHasItsScopes(t *testing.T) {
	t.Parallel()
	who := identify(t, parse(t, document), "Bearer "+deployToken)
	require.True(t, who.HasScope(passport.ScopeWorker))
	require.True(t, who.HasScope(passport.ScopeOperator))
	for _, scope := range []string{"", "chat", "pinboard:WORKER", "pinboard:"} {
		require.False(t, who.HasScope(scope), scope)
	}
	var nobody *passport.Identity
	require.False(t, nobody.HasScope(passport.ScopeWorker))
}

func TestPassportShowsNoToken(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	type hidden struct {
		p     *passport.Standard
		value passport.Standard
		iface passport.Passport
	}
	var out strings.Builder
	for _, value := range []any{p, *p, &p, []any{p}, struct{ P passport.Passport }{p}, hidden{p, *p, p}, &hidden{p, *p, p}} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, format+"\n", value)
		}
		text, err := json.Marshal(value)
		require.NoError(t, err)
		out.Write(text)
		log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.DebugLevel))
		log.Info("message", zap.Any("passport", value))
	}
	for _, token := range []string{deployToken, chatToken, "bare-token"} {
		require.NotContains(t, out.String(), token)
		require.NotContains(t, strings.ToLower(out.String()), fmt.Sprintf("%x", token))
		require.NotContains(t, out.String(), strings.Trim(fmt.Sprint([]byte(token)), "[]"))
	}
	require.Equal(t, "passport.Standard", fmt.Sprintf("%#v", p))
	who := identify(t, p, "Bearer "+chatToken)
	require.NotContains(t, fmt.Sprintf("%+v", who), chatToken)
}

func TestProvidersMayShareANameOfAKey(t *testing.T) {
	t.Parallel()
	p := parse(t, document)
	var callers []string
	for _, token := range []string{deployToken, chatToken} {
		who := identify(t, p, "Bearer "+token)
		callers = append(callers, who.Provider+"/"+who.Subject)
	}
	slices.Sort(callers)
	require.Equal(t, []string{"bots/deployment", "pinboard/deployment"}, callers)
}
