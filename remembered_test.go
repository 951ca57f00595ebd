package pinboard

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// Not parallel: it measures the heap. What a node remembers of a request is bounded by
// a number of names: they must not hold the request's target, which may be much longer.
func TestNamesThatAreRememberedHoldNoRequest(t *testing.T) {
	const requests, long = 64, 1 << 20
	var v vouched
	var m routeMemory
	b := bucket{namespace: "/a"}
	v.note(b, "generation")
	var ids []instance
	before := heap()
	for i := range requests {
		n := strconv.Itoa(i)
		r := requestLine(http.MethodGet, "http://host-"+n+"/a/"+n+"?"+strings.Repeat("x", long))
		asked, err := parseTarget(r)
		require.NoError(t, err)
		id, err := asked.instance()
		require.NoError(t, err)
		require.Equal(t, instance{"/a", n}, id)
		ids = append(ids, id)
		host, err := wire.ParseHostname(r.Host)
		require.NoError(t, err)
		require.Equal(t, "host-"+n, host)
		v.vouch(b, "generation", "session", host)
		m.put(id, route{})
		m.renew(id, m.get(id), remembered{unbound: host})
		require.Equal(t, host, m.get(id).unbound)
	}
	require.Less(t, heap()-before, int64(requests*long/4))
	require.Len(t, v.byBucket[b].unbound, requests)
	runtime.KeepAlive(ids)
	runtime.KeepAlive(&m)
}
