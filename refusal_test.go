package pinboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARefusalIsWrittenWithWhatItsStatusNeeds(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	for _, c := range []struct {
		err    error
		status int
		body   string
		header http.Header
	}{
		{refuse(404, "no such thing"), 404, `{"error":"no such thing"}`, nil},
		{fmt.Errorf("while asking: %w", refuse(400, "field x")), 400, `{"error":"field x"}`, nil},
		{&refusal{status: 401, message: "who", challenge: true}, 401, `{"error":"who"}`, http.Header{"Www-Authenticate": {"Bearer"}}},
		{errReregister, 409, `{"error":"the session is unknown or has ended","reregister":true}`, nil},
		{notNow("later", 0), 503, `{"error":"later"}`, http.Header{"Retry-After": {"1"}}},
		{notNow("later", -time.Second), 503, `{"error":"later"}`, http.Header{"Retry-After": {"1"}}},
		{notNow("later", time.Second), 503, `{"error":"later"}`, http.Header{"Retry-After": {"1"}}},
		{notNow("later", 1001*time.Millisecond), 503, `{"error":"later"}`, http.Header{"Retry-After": {"2"}}},
		{notNow("later", time.Hour), 503, `{"error":"later"}`, http.Header{"Retry-After": {"3600"}}},
		{errStoreTest, 503, `{"error":"the store does not answer"}`, http.Header{"Retry-After": {"1"}}},
		{errors.Join(errStoreAway, errStoreTest), 503, `{"error":"the store does not answer"}`, http.Header{"Retry-After": {"1"}}},
	} {
		rec := httptest.NewRecorder()
		n.pb.writeRefusal(rec, httptest.NewRequest("GET", "/", nil), c.err)
		require.Equal(t, c.status, rec.Code)
		require.JSONEq(t, c.body, rec.Body.String())
		want := http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}, "Content-Length": {fmt.Sprint(rec.Body.Len())}}
		maps.Copy(want, c.header)
		require.Equal(t, want, rec.Header())
	}
}

func TestWhatIsNotARefusalGoesToTheLogAndNotToTheClient(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	write := func(ctx context.Context, err error) string {
		rec := httptest.NewRecorder()
		n.pb.writeRefusal(rec, httptest.NewRequestWithContext(ctx, "GET", "/", nil), err)
		return rec.Body.String()
	}
	require.NotContains(t, write(t.Context(), fmt.Errorf("ask: %w", errStoreTest)), errStoreTest.Error())
	require.Contains(t, n.said.String(), "ask: "+errStoreTest.Error())
	logged := n.said.String()
	write(t.Context(), refuse(404, "an answer"))
	write(t.Context(), errStoreAway) // said once where it was found out
	gone, leave := context.WithCancel(t.Context())
	leave()
	write(gone, gone.Err()) // that the client left is no fault
	require.Equal(t, logged, n.said.String())
}
