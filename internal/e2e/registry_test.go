package e2e_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listedWorker is a worker as GET /registry/workers shows it.
type listedWorker struct {
	ClientID, SessionID, AdvertiseURL string
	Namespaces                        []string
	Headroom                          float64
	Draining, Degraded                bool
	DrainDeadline                     *float64
	ExpiresInMs                       int64
}

func (f *fleet) listWorkers(t *testing.T) []listedWorker {
	t.Helper()
	var list struct{ Workers []listedWorker }
	f.client.call(t, http.MethodGet, f.url()+"/registry/workers", bearer(f.operatorToken)).decode(t, &list)
	return list.Workers
}

// leaseEnd returns a moment at which the worker's lease has certainly not
// ended before, and false if the worker is not listed.
func (w *worker) leaseEnd(t *testing.T) (time.Time, bool) {
	t.Helper()
	asked := time.Now()
	l, ok := w.listed(t)
	return asked.Add(time.Duration(l.ExpiresInMs) * time.Millisecond), ok
}

// placement is a row as GET /registry/placements shows it.
type placement struct {
	ID, ClientID string
	Epoch        int64
	PlacedAt     int64 // Unix ms
}

// placement returns the room's row, and false if it is not placed.
func (f *fleet) placement(t *testing.T, id string) (placement, bool) {
	t.Helper()
	cursor := ""
	for {
		var page struct {
			Placements []placement
			Cursor     string
		}
		f.client.call(t, http.MethodGet, f.url()+"/registry/placements?namespace=/rooms&cursor="+url.QueryEscape(cursor),
			bearer(f.operatorToken)).decode(t, &page)
		for _, p := range page.Placements {
			if p.ID == id {
				return p, true
			}
		}
		if page.Cursor == "" {
			return placement{}, false
		}
		cursor = page.Cursor
	}
}

// requirePlaced checks that the room's row says what its instance says.
func (f *fleet) requirePlaced(t *testing.T, s state, w *worker) placement {
	t.Helper()
	p, ok := f.placement(t, s.ID)
	require.True(t, ok, "%s is placed", s.ID)
	require.Equal(t, w.clientID, p.ClientID)
	require.Equal(t, s.Epoch, p.Epoch)
	require.Equal(t, w.pid(), s.PID)
	return p
}

// operate calls one of the operators' POST routes.
func (f *fleet) operate(t *testing.T, route string, body map[string]any) answer {
	t.Helper()
	return f.client.post(t, f.url()+"/registry/"+route, body, bearer(f.operatorToken)).requireStatus(t, http.StatusOK)
}

// quarantine returns what is left of the longest running quarantine.
func (f *fleet) quarantine(t *testing.T) time.Duration {
	t.Helper()
	var health struct{ QuarantineMs int64 }
	f.client.call(t, http.MethodGet, f.url()+"/registry/health", bearer(f.operatorToken)).decode(t, &health)
	return time.Duration(health.QuarantineMs) * time.Millisecond
}
