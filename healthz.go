package pinboard

import (
	"context"
	"net/http"
	"time"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
)

// serveHealthz answers whether this node can serve: whether its store answers, and
// takes writes (protocol §4). It takes no credential.
func (p *Pinboard) serveHealthz(w http.ResponseWriter, r *http.Request) {
	leaveBody(w, r)
	if err := allow(w, r, http.MethodGet); err != nil {
		p.writeRefusal(w, r, err)
		return
	}
	if err := p.ping(r.Context()); err != nil {
		p.writeRefusal(w, r, err)
		return
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}

// ping asks whether the store takes writes. Anybody may have it asked, and as often as
// they like: whoever asks meanwhile shares the answer, so that it is asked once at a time.
func (p *Pinboard) ping(ctx context.Context) error {
	_, err, _ := p.pings.Do("", func() (any, error) {
		shared := context.WithoutCancel(ctx)
		bounded, cancel := context.WithTimeout(shared, storeTimeout)
		defer cancel()
		asked := time.Now()
		err := p.store.Ping(bounded)
		p.placer.back.wrote(shared, asked, err)
		return nil, err
	})
	return err
}
