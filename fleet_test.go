package pinboard

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestTheOverviewCountsByNamespaceAndByWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		require.JSONEq(t, `{"placements":0,"namespaces":[],"workers":[]}`, n.get("/registry/overview", tokenOperator).text)
		ctx := t.Context()
		join := func(client, url, hostname string, epoch int64, instances map[string][]string) string {
			session := client + "-session"
			_, err := n.store.Register(ctx, store.Registration{
				SessionID: session, ClientID: client, Secret: wire.NewSecret("planted-secret"), Namespaces: []string{"/a", "/b"},
				AdvertiseURL: url, Hostname: hostname, Epoch: epoch, Headroom: 5, Instances: instances,
			})
			require.NoError(t, err)
			return session
		}
		ready := join("ready", "http://h:1", "", 0, map[string][]string{"/a": {"x", "y"}, "/b": {"z"}})
		draining := join("draining", "http://h:2", "", 0, map[string][]string{"/a": {"w"}})
		degraded := join("degraded", "http://h:3", "", 0, nil)
		join("registering", "http://h:4", "", 0, nil)
		join("leaving", "http://h:5", "h.example", 0, map[string][]string{"/a": {"x"}})
		newer := join("newer", "http://h:6", "h.example", 1, nil)
		for _, s := range []string{ready, draining, degraded, newer} {
			require.NoError(t, n.store.Activate(ctx, s))
		}
		_, err := n.store.Drain(ctx, "draining", nil)
		require.NoError(t, err)
		require.NoError(t, n.store.SetDegraded(ctx, degraded, true))
		all := n.get("/registry/overview", tokenOperator)
		require.Equal(t, http.StatusOK, all.status)
		require.JSONEq(t, `{"placements":5,
			"namespaces":[
				{"namespace":"/a","placements":3,"workers":4,"ready":1,"headroom":5},
				{"namespace":"/a","hostname":"h.example","placements":1,"workers":2,"ready":1,"headroom":5},
				{"namespace":"/b","placements":1,"workers":4,"ready":1,"headroom":5},
				{"namespace":"/b","hostname":"h.example","placements":0,"workers":2,"ready":1,"headroom":5}],
			"workers":[
				{"clientId":"degraded","sessionId":"degraded-session","state":"degraded","headroom":5,"placements":0,"namespaces":{"/a":0,"/b":0}},
				{"clientId":"draining","sessionId":"draining-session","state":"draining","headroom":5,"placements":1,"namespaces":{"/a":1,"/b":0}},
				{"clientId":"leaving","sessionId":"leaving-session","hostname":"h.example","state":"leaving","headroom":5,"placements":1,"namespaces":{"/a":1,"/b":0}},
				{"clientId":"newer","sessionId":"newer-session","hostname":"h.example","state":"ready","headroom":5,"placements":0,"namespaces":{"/a":0,"/b":0}},
				{"clientId":"ready","sessionId":"ready-session","state":"ready","headroom":5,"placements":3,"namespaces":{"/a":2,"/b":1}},
				{"clientId":"registering","sessionId":"registering-session","state":"registering","headroom":5,"placements":0,"namespaces":{"/a":0,"/b":0}}]}`, all.text)
		some := n.get("/registry/overview", tokenViewer)
		require.NotContains(t, some.text, "/b")
		require.Contains(t, some.text, `"placements":4,`)
		require.Contains(t, some.text, `"clientId":"ready","sessionId":"ready-session","state":"ready","headroom":5,"placements":2,"namespaces":{"/a":2}}`)
		time.Sleep(time.Hour) // virtual time: all leases are over
		require.JSONEq(t, `{"placements":0,"namespaces":[],"workers":[]}`, n.get("/registry/overview", tokenOperator).text)
	})
}
