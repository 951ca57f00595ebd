package pinboard

import (
	"net/http"

	"github.com/pinboard-go/pinboard/internal/ui"
)

// serveUI answers with the operators' page or one of its files. There is no
// data in them: anybody may have them.
func (g *registry) serveUI(w http.ResponseWriter, r *http.Request, asset *ui.Asset) {
	leaveBody(w, r)
	if err := allow(w, r, http.MethodGet); err != nil {
		g.writeRefusal(w, r, err)
		return
	}
	g.boundWrites(w, r, g.within+g.opts.Limits.WritePause)
	asset.ServeHTTP(w, r)
}
