package passport_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// jwtWith returns a document with one jwt provider whose fields are replaced;
// "-" takes one out.
func jwtWith(changes ...string) string {
	fields := map[string]json.RawMessage{}
	text := `{"type": "jwt", "id": "users", "issuer": "https://id.example.com", "audience": "chat",
	  "jwksUrl": "https://id.example.com/jwks.json", "algorithms": ["RS256"]}`
	for _, text := range append([]string{text}, changes...) {
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			panic(err)
		}
	}
	maps.DeleteFunc(fields, func(_ string, v json.RawMessage) bool { return string(v) == `"-"` })
	provider, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return `{"providers": [` + string(provider) + `]}`
}

func TestFaultOfAJWTProviderNamesItsPlace(t *testing.T) {
	t.Parallel()
	for place, changes := range map[string][]string{
		"id":          {`{"id": "-"}`, `{"id": ""}`},
		"issuer":      {`{"issuer": "-"}`, `{"issuer": ""}`, `{"issuer": 1}`, `{"issuer": ["x"]}`, `{"issuer": null}`},
		"audience":    {`{"audience": "-"}`, `{"audience": ""}`, `{"audience": []}`, `{"audience": 1}`, `{"audience": null}`, `{"audience": {}}`},
		"audience[1]": {`{"audience": ["a", ""]}`, `{"audience": ["a", 1]}`, `{"audience": ["a", "a"]}`, `{"audience": ["a", ["b"]]}`},
		"algorithms":  {`{"algorithms": "-"}`, `{"algorithms": []}`, `{"algorithms": "RS256"}`, `{"algorithms": null}`},
		"algorithms[0]": {
			`{"algorithms": ["none"]}`, `{"algorithms": ["None"]}`, `{"algorithms": ["HS256"]}`, `{"algorithms": ["HS384"]}`, `{"algorithms": ["HS512"]}`,
			`{"algorithms": ["rs256"]}`, `{"algorithms": ["RS1"]}`, `{"algorithms": ["ES256K"]}`, `{"algorithms": ["Ed25519"]}`, `{"algorithms": ["*"]}`,
			`{"algorithms": ["RSA-OAEP"]}`, `{"algorithms": [""]}`, `{"algorithms": [256]}`, `{"algorithms": [null]}`,
		},
		"algorithms[1]": {`{"algorithms": ["RS256", "HS256"]}`, `{"algorithms": ["RS256", "RS256"]}`, `{"algorithms": ["RS256", "none"]}`},
		"from":          {`{"from": []}`, `{"from": "authorization"}`, `{"from": null}`, `{"from": {}}`},
		"from[0]": {
			`{"from": ["Authorization"]}`, `{"from": ["authorization:x"]}`, `{"from": ["header:x"]}`, `{"from": ["cookie"]}`, `{"from": ["cookie:"]}`,
			`{"from": ["query:"]}`, `{"from": ["query"]}`, `{"from": ["cookie:a b"]}`, `{"from": ["cookie:a=b"]}`, `{"from": ["cookie:a;b"]}`,
			`{"from": ["query:a&b"]}`, `{"from": ["query:a=b"]}`, `{"from": ["query:a%20b"]}`, `{"from": ["query:a+b"]}`, `{"from": [""]}`, `{"from": [1]}`,
			`{"from": ["bearer"]}`, `{"from": [" authorization"]}`, `{"from": ["cookie: a"]}`, `{"from": ["Cookie:a"]}`,
		},
		"from[1]": {`{"from": ["authorization", "authorization"]}`, `{"from": ["cookie:a", "cookie:a"]}`},
		"jwksUrl": {
			`{"jwksUrl": "-"}`, `{"jwksUrl": ""}`, `{"jwksUrl": 1}`, `{"jwksUrl": ["https://x"]}`,
			`{"jwksUrl": "http://id.example.com/jwks.json"}`, `{"jwksUrl": "http://10.0.0.1/"}`, `{"jwksUrl": "http://127.0.0.1.example.com/"}`,
			`{"jwksUrl": "http://localhost.example.com/"}`, `{"jwksUrl": "http://[::ffff:10.0.0.1]/"}`, `{"jwksUrl": "http://0.0.0.0/"}`,
			`{"jwksUrl": "https://"}`, `{"jwksUrl": "https:///jwks.json"}`, `{"jwksUrl": "id.example.com/jwks.json"}`, `{"jwksUrl": "/jwks.json"}`,
			`{"jwksUrl": "file:///etc/jwks.json"}`, `{"jwksUrl": "ftp://id.example.com/"}`, `{"jwksUrl": "data:application/json,x"}`, `{"jwksUrl": "https:id.example.com"}`,
			`{"jwksUrl": "https://ann:` + planted + `@id.example.com/"}`, `{"jwksUrl": "https://` + planted + `@id.example.com/"}`,
			`{"jwksUrl": "https://id.example.com/#x"}`, `{"jwksUrl": "https://id.example.com:x/` + planted + `"}`, `{"jwksUrl": "https://id.example.com/%zz` + planted + `"}`,
			`{"jwksUrl": "ftp://id.example.com/", "allowHttp": true}`,
		},
		"registry": {
			`{"registry": 1}`, `{"registry": "true"}`, `{"registry": null}`,
			`{"registry": true, "from": ["cookie:a"]}`, `{"registry": true, "from": ["authorization", "query:a"]}`,
		},
		"forward":   {`{"forward": "yes"}`, `{"forward": null}`, `{"forward": {}}`},
		"allowHttp": {`{"allowHttp": "http://x"}`, `{"allowHttp": 0}`},
		"keys":      {`{"keys": []}`},
		"secret":    {`{"secret": "` + planted + `"}`},
		"jwksURL":   {`{"jwksURL": "https://id.example.com"}`},
		"allowHTTP": {`{"allowHTTP": true}`},
	} {
		for i, change := range changes {
			t.Run(fmt.Sprintf("%s %d", place, i), func(t *testing.T) {
				t.Parallel()
				requireFaults(t, jwtWith(change), "providers[0]."+place)
			})
		}
	}
	requireFaults(t, `{"providers": [{"type": "jwt"}]}`, "providers[0].id", "providers[0].issuer", "providers[0].audience",
		"providers[0].jwksUrl", "providers[0].algorithms")
	requireFaults(t, jwtWith(`{"issuer": "", "audience": 1, "algorithms": ["HS256", "none"], "from": ["x"], "registry": true, "jwksUrl": "http://x"}`),
		"providers[0].issuer", "providers[0].audience", "providers[0].algorithms[0]", "providers[0].algorithms[1]", "providers[0].from[0]",
		"providers[0].registry", "providers[0].jwksUrl")
	one := strings.TrimSuffix(strings.TrimPrefix(jwtWith(), `{"providers": [`), `]}`)
	requireFaults(t, `{"providers": [`+one+`, `+one+`]}`, "providers[1].id")
}

func TestEveryFieldOfAJWTProviderIsTaken(t *testing.T) {
	t.Parallel()
	for _, change := range []string{
		`{}`, `{"audience": ["chat"]}`, `{"audience": ["chat", "threads"]}`,
		`{"algorithms": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]}`,
		`{"from": ["authorization"]}`, `{"from": ["cookie:__Host-session", "query:access_token", "authorization", "cookie:other"]}`,
		`{"registry": true}`, `{"registry": true, "from": ["authorization"]}`, `{"registry": false, "from": ["cookie:a"]}`, `{"forward": true}`,
		`{"jwksUrl": "http://id.example.com/jwks.json", "allowHttp": true}`, `{"jwksUrl": "HTTPS://id.example.com:8443/a?b=c"}`,
		`{"jwksUrl": "http://localhost:8080/"}`, `{"jwksUrl": "http://LOCALHOST/"}`, `{"jwksUrl": "http://127.1.2.3/"}`, `{"jwksUrl": "http://[::1]:1/"}`,
	} {
		p, err := passport.Parse([]byte(jwtWith(change)), environment)
		require.NoError(t, err, change)
		require.NoError(t, p.Close())
	}
}

func TestDocumentsOfTheDocumentationAreGood(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/passport.md")
	require.NoError(t, err)
	blocks := strings.Split(string(text), "```json\n")[1:]
	require.Len(t, blocks, 2)
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(block, `"providers": [`+"\n") {
			block = `{"providers": [` + block + `]}`
		}
		p, err := passport.Parse([]byte(block), environment)
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
}
