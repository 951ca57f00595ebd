package attest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
)

const times = `"iat":1700000000,"exp":1700000030`

// payloads are ways to write one, right and wrong.
var payloads = []string{
	rightBody,
	`{"aud":"a","iat":0,"exp":999999999999999}`,
	`{"aud":"a","iat":00,"exp":1}`, `{"aud":"a","iat":-1,"exp":1}`, `{"aud":"a","iat":1.0,"exp":1}`, `{"aud":"a","iat":,"exp":1}`,
	`{"aud":"a","iat":1,"exp":9999999999999999}`, `{"aud":"a","iat":1,"exp":99999999999999999999999}`,
	`{"aud":"a\u0062","iat":1,"exp":1}`, `{"aud":"\"","iat":1,"exp":1}`, `{"aud":"ä","iat":1,"exp":1}`, "{\"aud\":\"\x00\",\"iat\":1,\"exp\":1}",
	"{\"aud\":\"\xff\",\"iat\":1,\"exp\":1}", "{\"aud\":\"\x7f\",\"iat\":1,\"exp\":1}",
	`{"aud":"a",` + times + `,"caller":"/a/b","depth":3}`, `{"aud":"a",` + times + `,"caller":"/a/b"}`,
	`{"aud":"a",` + times + `,"caller":"/a/b","depth":-3}`, `{"aud":"a",` + times + `,"caller":null,"depth":3}`,
	`{"aud":"a",` + times + `,"caller":"/a/b","depth":3,"depth":4}`, `{"aud":"a",` + times + `,"aud":"b"}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{}}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":["x","y"],"claims":{"n":12345678901234567890,"t":{"x":[1,null]}}}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":["x",],"claims":{}}}`, `{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":["x""y"],"claims":{}}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[null],"claims":{}}}`, `{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":null}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":[]}}`, `{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{"a":1},"sub":"t"}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{"a":1}},"aud":"b"}`, `{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{"a":1}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{"a":1}}}}`, `{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{"a":{}}}}`,
	`{"aud":"a",` + times + `,"acct":{"sub":"s","scopes":[],"claims":{}}}}`, `{"aud":"a",` + times + `} `, `{"aud":"a",` + times + `}}`, ` {"aud":"a",` + times + `}`,
	`{"aud":"a", ` + times + `}`, `{"AUD":"a",` + times + `}`, `{` + times + `,"aud":"a"}`, `{}`, ``, `null`, `[]`, `{"aud":"a",` + times,
}

func requireReadAlike(t *testing.T, payload string) (quickly bool) {
	t.Helper()
	quick, usual, times, ok, err := attest.ReadBothWays(payload)
	if ok {
		require.NoError(t, err, payload)
		require.Equal(t, usual, quick, payload)
		require.Equal(t, times[1], times[0], payload)
	}
	return ok
}

func TestWhatIsReadQuicklyIsWhatIsReadInAnyCase(t *testing.T) {
	t.Parallel()
	quickly := 0
	for _, payload := range payloads {
		if requireReadAlike(t, payload) {
			quickly++
		}
		for i := range payload { // one byte less, and one another
			requireReadAlike(t, payload[:i]+payload[i+1:])
			for _, c := range []string{"0", "}", `"`, ",", "{", `\`} {
				requireReadAlike(t, payload[:i]+c+payload[i+1:])
				requireReadAlike(t, payload[:i]+c+payload[i:])
			}
		}
	}
	require.Equal(t, 6, quickly)
	deep := strings.Repeat(`{"a":`, 9999) + "1" + strings.Repeat("}", 9999)
	require.False(t, requireReadAlike(t, `{"aud":"a",`+times+`,"acct":{"sub":"s","scopes":[],"claims":`+deep+`}}`), "too deep for one of the ways")
}

// What Mint writes is read quickly, but for texts that need decoding.
func TestWhatMintWritesIsReadQuickly(t *testing.T) {
	t.Parallel()
	for name, claims := range onBehalfOf {
		require.True(t, requireReadAlike(t, decode(t, strings.Split(mint(t, claims), ".")[1])), name)
	}
}
