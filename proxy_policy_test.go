package pinboard

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/passport"
)

// policyDocument has two identity servers, one of which leaves tokens where
// they are, and policies of every kind. NAMESPACES is the test's.
const policyDocument = `{"providers": [
  {"type": "staticToken", "id": "bots", "keys": [
    {"name": "plain", "token": "plain-token"}, {"name": "chatty", "token": "chatty-token", "scopes": ["chat", "paid"]}]},
  {"type": "jwt", "id": "users", "issuer": "https://id.example.com", "audience": "chat", "jwksUrl": "USERS", "algorithms": ["ES256"],
   "from": ["authorization", "cookie:session", "query:access_token"]},
  {"type": "jwt", "id": "staff", "issuer": "https://id.example.com", "audience": "chat", "jwksUrl": "STAFF", "algorithms": ["ES256"],
   "from": ["authorization", "cookie:desk"], "forward": true}]NAMESPACES}`

const policyNamespaces = `, "namespaces": {
  "/open":      {"allow": "anonymous"},
  "known":      {"allow": "authenticated"},
  "/room*":     {"allow": "authenticated", "providers": ["users"], "scopes": ["chat"]},
  "room-open*": {"allow": "anonymous"},
  "/room-bots": {"allow": "authenticated", "providers": ["bots"]},
  "/people":    {"allow": "authenticated", "providers": ["users", "staff"]},
  "/both":      {"allow": "authenticated", "scopes": ["chat", "paid"]}}`

// The namespaces that the table below has a column for, in its order. No policy
// names the last.
var policyColumns = []string{"/open", "/known", "/room1", "/room-open1", "/room-bots", "/people", "/both", "/none"}

// policyRows is protocol §10 whole: who asks with what, what each namespace
// says, and, where it lets the request in, what its worker sees. U is a token of
// users' with the scope chat, V one without a scope, S one of staff's, X an
// expired one, F a forged one.
var policyRows = []struct {
	headers, query string
	status         string // one column each: 2 in, 1 a 401, 3 a 403
	account        string // provider's subject and scopes, "" for nobody
	authorization  string // at the worker
	cookie         string
	gotQuery       string
}{
	// Nobody that is known. What was sent reaches the worker as it is.
	{"", "", "21121111", "", "", "", ""},
	{"", "?a=1;b&%zz&=", "21121111", "", "", "", "?a=1;b&%zz&="},
	{"Authorization: Bearer unknown", "?", "21121111", "", "Bearer unknown", "", "?"},
	{"Authorization: Basic cGxhaW4tdG9rZW46", "", "21121111", "", "Basic cGxhaW4tdG9rZW46", "", ""},
	{"Authorization: plain-token", "", "21121111", "", "plain-token", "", ""},
	{"Authorization: Token chatty-token", "", "21121111", "", "Token chatty-token", "", ""},
	{"Authorization: Bearer plain-token2", "", "21121111", "", "Bearer plain-token2", "", ""},
	{"Authorization: Bearer X", "", "21121111", "", "Bearer X", "", ""},
	{"Authorization: Bearer F", "?access_token=F", "21121111", "", "Bearer F", "", "?access_token=F"},
	{"Cookie: a=b; session=X; c=d", "", "21121111", "", "", "a=b; session=X; c=d", ""},
	{"Cookie: session=plain-token", "", "21121111", "", "", "session=plain-token", ""},
	{"", "?access_token=plain-token", "21121111", "", "", "", "?access_token=plain-token"},
	{"", "?access_token=U&access_token=U", "21121111", "", "", "", "?access_token=U&access_token=U"},
	{"", "?Access_Token=U", "21121111", "", "", "", "?Access_Token=U"},
	{"Cookie: session=U; session=U", "", "21121111", "", "", "session=U; session=U", ""},
	{"Cookie: desk=U", "", "21121111", "", "", "desk=U", ""},
	{"X-Authorization: Bearer U", "", "21121111", "", "", "", ""},
	// A static token, which never reaches a worker.
	{"Authorization: Bearer plain-token", "", "22322333", "plain", "", "", ""},
	{"authorization: bEARER   plain-token", "?a", "22322333", "plain", "", "", "?a"},
	{"Authorization: Bearer chatty-token", "?x=1;y&&", "22322323", "chatty chat paid", "", "", "?x=1;y&&"},
	{"Authorization: Bearer plain-token\r\nCookie: a=b; session=V; c=d", "?access_token=V&b=%2f", "22322333", "plain", "", "a=b; c=d", "?b=%2f"},
	{"Authorization: Bearer chatty-token\r\nCookie: session=X", "", "22322323", "chatty chat paid", "", "", ""},
	{"Authorization: Bearer plain-token\r\nCookie: desk=S", "", "22322333", "plain", "", "desk=S", ""},
	// A token of users', from each of its places.
	{"Authorization: Bearer U", "", "22223233", "ann chat", "", "", ""},
	{"Authorization: Bearer V", "", "22323233", "ann", "", "", ""},
	{"Cookie: a=b;session=U;c=\"d e\"", "?q", "22223233", "ann chat", "", "a=b;c=\"d e\"", "?q"},
	{"Cookie: session=U", "?access_token=X", "22223233", "ann chat", "", "", ""},
	{"", "?access_token=U", "22223233", "ann chat", "", "", ""},
	{"", "?a=%zz;&access%5ftoken=U&&b=+", "22223233", "ann chat", "", "", "?a=%zz;&&b=+"},
	{"Authorization: Bearer unknown", "?access_token=U", "22223233", "ann chat", "Bearer unknown", "", ""},
	{"Authorization: Basic dTpw\r\nCookie: session=U", "", "22223233", "ann chat", "Basic dTpw", "", ""},
	{"Authorization: Bearer V\r\nCookie: session=U", "?access_token=U", "22323233", "ann", "", "", ""},
	{"Authorization: Bearer F\r\nCookie: session=U", "", "22223233", "ann chat", "Bearer F", "", ""},
	// A token of staff's, which stays where it is.
	{"Authorization: Bearer S", "", "22323223", "ann chat paid", "Bearer S", "", ""},
	{"Cookie: desk=S; a=b", "?a", "22323223", "ann chat paid", "", "desk=S; a=b", "?a"},
	{"Authorization: Bearer S\r\nCookie: session=X", "?access_token=X&a", "22323223", "ann chat paid", "Bearer S", "", "?a"},
	// Of two who are known, the first provider's counts.
	{"Authorization: Bearer plain-token\r\nCookie: session=U; desk=S", "", "22322333", "plain", "", "desk=S", ""},
	{"Authorization: Bearer S\r\nCookie: session=U", "", "22223233", "ann chat", "Bearer S", "", ""},
	{"Cookie: session=U; desk=S", "", "22223233", "ann chat", "", "desk=S", ""},
	// Two lines are no credential, and both reach the worker.
	{"Authorization: Bearer U\r\nAuthorization: Bearer U", "", "21121111", "", "Bearer U|Bearer U", "", ""},
	{"Authorization: Bearer plain-token\r\nAuthorization: x", "?access_token=U", "22223233", "ann chat", "Bearer plain-token|x", "", ""},
}

func TestTheTableOfPoliciesHolds(t *testing.T) {
	t.Parallel()
	users, staff := newIdentityServer(t), newIdentityServer(t)
	tokens := strings.NewReplacer(
		"=U", "="+users.token(`,"scope":"chat"`), "r U", "r "+users.token(`,"scope":"chat"`),
		"=V", "="+users.token(""), "r V", "r "+users.token(""),
		"=S", "="+staff.token(`,"scope":"chat paid"`), "r S", "r "+staff.token(`,"scope":"chat paid"`),
		"=X", "="+users.token(`,"nbf":4102444800`), "r X", "r "+users.token(`,"nbf":4102444800`),
		"=F", "="+newIdentityServer(t).token(""), "r F", "r "+newIdentityServer(t).token(""))
	for name, namespaces := range map[string]string{"policies": policyNamespaces, "none": "", "empty": `, "namespaces": {}`} {
		pass, err := passport.Parse([]byte(strings.NewReplacer("USERS", users.url, "STAFF", staff.url, "NAMESPACES", namespaces).
			Replace(policyDocument)), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pass.Close()) })
		f := newFront(t, withPassport(pass), serving(policyColumns...))
		w := newFake(t, nil)
		s := f.registerIn(w, policyColumns...)
		seen := 0
		for _, row := range policyRows {
			for i, namespace := range policyColumns {
				what := name + " " + namespace + row.query + " " + row.headers
				digit := row.status[i]
				if namespaces == "" || name == "empty" { // denied, whoever it is
					digit = map[bool]byte{true: '1', false: '3'}[row.account == ""]
				}
				want := map[byte]int{'1': 401, '2': 200, '3': 403}[digit]
				var headers []string
				if row.headers != "" {
					headers = strings.Split(tokens.Replace(row.headers), "\r\n")
				}
				resp, body := f.get(namespace+"/alice/x"+tokens.Replace(row.query), headers...)
				require.Equal(t, want, resp.StatusCode, what)
				require.Equal(t, map[bool]string{true: "Bearer", false: ""}[want == 401], resp.Header.Get("WWW-Authenticate"), what)
				switch want {
				case 401:
					require.Equal(t, "authentication required", errorOf(t, body), what)
					continue
				case 403:
					require.Equal(t, "not allowed", errorOf(t, body), what)
					continue
				}
				hits := w.seen()
				require.Len(t, hits, seen+1)
				h := hits[seen]
				seen++
				account := ""
				if who := h.claims(s).Account; who != nil {
					account = strings.Join(append([]string{who.Subject}, who.Scopes...), " ")
				}
				require.Equal(t, row.account, account, what)
				require.Equal(t, tokens.Replace(row.authorization), strings.Join(h.header["Authorization"], "|"), what)
				require.Equal(t, tokens.Replace(row.cookie), strings.Join(h.header["Cookie"], "|"), what)
				require.Equal(t, namespace+"/alice/x"+tokens.Replace(row.gotQuery), h.target, what)
			}
		}
		require.Len(t, w.seen(), seen, "who is refused reaches nobody")
	}
}

// A star rules what nothing else does, and the most specific policy alone.
func TestTheMostSpecificPolicyRulesAlone(t *testing.T) {
	t.Parallel()
	const anonymous, authenticated = `{"allow": "anonymous"}`, `{"allow": "authenticated"}`
	for _, c := range []struct {
		policies string
		want     string // for /ab, /abc, /b: 2 in, 1 a 401
	}{
		{`"*": ` + anonymous, "222"},
		{`"/*": ` + authenticated, "111"},
		{`"*": ` + anonymous + `, "/a*": ` + authenticated, "112"},
		{`"/*": ` + authenticated + `, "a*": ` + anonymous, "221"},
		{`"ab": ` + anonymous + `, "a*": ` + authenticated + `, "*": ` + anonymous, "212"},
		{`"/ab": ` + authenticated + `, "/ab*": ` + anonymous, "121"},
		{`"/abc*": ` + anonymous + `, "/ab*": ` + authenticated + `, "a*": ` + anonymous, "121"},
		{`"/ab": ` + anonymous, "211"},
		{`"b": ` + anonymous + `, "/*": ` + authenticated, "112"},
	} {
		pass, err := passport.Parse([]byte(`{"namespaces": {`+c.policies+`}}`), nil)
		require.NoError(t, err)
		f := newFront(t, withPassport(pass), serving("/ab", "/abc", "/b"))
		f.registerIn(newFake(t, nil), "/ab", "/abc", "/b")
		for i, namespace := range []string{"/ab", "/abc", "/b"} {
			resp, _ := f.get(namespace + "/alice")
			require.Equal(t, map[byte]int{'1': 401, '2': 200}[c.want[i]], resp.StatusCode, "%s %s", c.policies, namespace)
		}
		resp, _ := f.get("/unregistered/alice")
		require.Equal(t, map[bool]int{true: 404, false: 401}[strings.Contains(c.policies, `"*": `+anonymous)], resp.StatusCode, c.policies)
	}
}

// A document without "allow" is none: nobody is let in by leaving it out.
func TestAPolicyThatDoesNotSayWhomItLetsInIsAFault(t *testing.T) {
	t.Parallel()
	_, err := passport.Parse([]byte(`{"namespaces": {"/a": {"scopes": ["chat"]}}}`), nil)
	require.ErrorContains(t, err, `namespaces["/a"].allow: is missing`)
}

// serving has the namespaces place at once.
func serving(namespaces ...string) func(*setup) {
	return func(s *setup) { s.namespaces = namespaces }
}

// registerIn registers a worker for the namespaces.
func (f *front) registerIn(w *fake, namespaces ...string) *session {
	f.t.Helper()
	return f.register(w, "a", func(r *store.Registration) { r.Namespaces = namespaces })
}
