package pinboard

import (
	"context"
	"net/http"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
)

// serveHealthz answers whether this node can serve: whether its store answers
// (protocol §4). It takes no credential.
func (p *Pinboard) serveHealthz(w http.ResponseWriter, r *http.Request) {
	leaveBody(w, r)
	if err := allow(w, r, http.MethodGet); err != nil {
		p.writeRefusal(w, r, err)
		return
	}
	// Anybody may ask, and as often as they like: whoever asks meanwhile shares
	// the answer, so that the store is asked once at a time.
	_, err, _ := p.pings.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeTimeout)
		defer cancel()
		return nil, p.store.Ping(ctx)
	})
	if err != nil {
		p.writeRefusal(w, r, err)
		return
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}
