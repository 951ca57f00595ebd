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
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	if err := p.store.Ping(ctx); err != nil {
		p.writeRefusal(w, r, err)
		return
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}
