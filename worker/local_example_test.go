package worker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinboard-go/pinboard/worker"
)

// newTally makes what is tested.
func newTally(*worker.Instance) (http.Handler, error) {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, n.Add(1)) }), nil
}

// In a bubble of testing/synctest the five minutes pass at once: no server and no
// connection, which a bubble can't wait for.
func TestATallyIsForgottenWhenItIsIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := worker.New(worker.Options{Local: true, IdleTimeout: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Host("/tallies", newTally); err != nil {
			t.Fatal(err)
		}
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		add := func() string {
			rec := httptest.NewRecorder()
			w.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "POST", "/tallies/alice", nil))
			return rec.Body.String()
		}
		if first, second := add(), add(); first != "1" || second != "2" {
			t.Errorf("a live instance counts %s, %s", first, second)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := add(); n != "1" {
			t.Errorf("a new instance begins with %s", n)
		}
		if err := w.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
