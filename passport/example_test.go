package passport_test

import (
	"fmt"
	"net/http"
	"os"

	"github.com/pinboard-go/pinboard/passport"
)

func ExampleParse() {
	p, err := passport.Parse([]byte(`{
	  "providers": [{"type": "staticToken", "id": "bots", "keys": [{"name": "greeter", "token": "s3cret", "scopes": ["chat"]}]}],
	  "namespaces": {"/threads": {"allow": "authenticated", "scopes": ["chat"]}, "*": {"allow": "anonymous"}}
	}`), os.LookupEnv)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, _ := http.NewRequest(http.MethodGet, "https://pinboard.example/threads/42", nil)
	fmt.Println(p.Admit(r.Context(), "/threads", nil))

	r.Header.Set("Authorization", "Bearer s3cret")
	who, err := p.Identify(r.Context(), r)
	fmt.Println(who.Provider, who.Subject, err)
	fmt.Println(p.Admit(r.Context(), "/threads", who))
	// Output:
	// authentication required
	// bots greeter <nil>
	// <nil>
}

func ExampleParse_faults() {
	_, err := passport.Parse([]byte(`{
	  "providers": [{"type": "staticToken", "id": "bots", "keys": [{"name": "greeter", "token": ""}]}],
	  "namespaces": {"/threads": {"allow": "everyone"}}
	}`), os.LookupEnv)
	fmt.Println(err)
	// Output:
	// providers[0].keys[0].token: is empty
	// namespaces["/threads"].allow: must be "anonymous" or "authenticated"
}
