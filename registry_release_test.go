package pinboard

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

func TestAReleaseFreesTheRowsOfItsSessionAndEpochOnly(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, other := n.worker(), n.worker()
	w.register(fields{"instances": fields{"/a": []string{"1", "2", "3", "4"}}})
	other.register(fields{"instances": fields{"/a": []string{"theirs"}}})
	_, epoch := n.owner("/a", "2")
	entry := func(id, epoch string) fields {
		e := fields{"sessionId": w.session, "namespace": "/a", "id": id}
		if epoch != "" {
			e["epoch"] = epoch
		}
		return e
	}
	release := func(body any, count float64) {
		t.Helper()
		a := n.post("/registry/release", tokenWorker, body)
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.Equal(t, "no-store", a.header.Get("Cache-Control"))
		require.InDelta(t, count, a.field(t, "released"), 0)
	}
	release(entry("1", ""), 1) // one object
	release(entry("1", ""), 0) // safe to repeat
	release([]fields{
		entry("2", strconv.FormatInt(epoch, 10)),
		entry("3", strconv.FormatInt(epoch+1000, 10)), // another placement's
		entry("4", ""),
		entry("theirs", ""), entry("nobody's", ""), entry("not an id", ""),
		{"sessionId": "unknown", "namespace": "/a", "id": "3"},
		{"sessionId": w.session, "namespace": "no namespace", "id": "3"},
	}, 2)
	release([]fields{}, 0)
	for _, id := range []string{"1", "2", "4"} {
		_, err := n.store.Lookup(t.Context(), "/a", id)
		require.ErrorIs(t, err, store.ErrNotPlaced)
	}
	owner, _ := n.owner("/a", "3")
	require.Equal(t, w.session, owner)
	owner, _ = n.owner("/a", "theirs")
	require.Equal(t, other.session, owner)
}

func TestAReleaseOutsideTheClaimsIs403AndFreesNothing(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"namespaces": []string{"/a", "/b"}, "instances": fields{"/a": []string{"x"}, "/b": []string{"x"}}})
	body := []fields{
		{"sessionId": w.session, "namespace": "/a", "id": "x"},
		{"sessionId": w.session, "namespace": "/b", "id": "x"},
	}
	n.post("/registry/release", tokenSome, body).requireRefusal(t, http.StatusForbidden, "/b")
	n.post("/registry/release", tokenBare, body).requireRefusal(t, http.StatusForbidden, "/a")
	for _, ns := range []string{"/a", "/b"} {
		owner, _ := n.owner(ns, "x")
		require.Equal(t, w.session, owner)
	}
	require.Equal(t, http.StatusOK, n.post("/registry/release", tokenSome, body[:1]).status)
}

func TestAReleaseWithAWrongFieldIs400AndFreesNothing(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	good := fields{"sessionId": "s", "namespace": "/a", "id": "x"}
	for _, c := range []struct {
		field string
		value any
	}{
		{"sessionId", nil}, {"sessionId", 1}, {"namespace", ""}, {"id", 7}, {"epoch", 7}, {"epoch", "x"}, {"epoch", "-1"},
		{"epoch", "0"}, {"epoch", "9007199254740992"}, {"epoch", "1.0"}, {"epoch", ""},
	} {
		bad := fields{"sessionId": "s", "namespace": "/a", "id": "x", c.field: c.value}
		n.post("/registry/release", tokenWorker, bad).requireRefusal(t, http.StatusBadRequest, c.field)
		n.post("/registry/release", tokenWorker, []fields{good, bad}).requireRefusal(t, http.StatusBadRequest, c.field)
	}
	for _, body := range []string{"", "null", `"x"`, "[1]", "[null]", "[{]", "{}{}"} {
		n.post("/registry/release", tokenWorker, body).requireRefusal(t, http.StatusBadRequest, "")
	}
	require.Empty(t, n.store.called())
	n.store.fail(errStoreTest)
	n.post("/registry/release", tokenWorker, good).requireRefusal(t, http.StatusServiceUnavailable, "store")
}

func TestADeregistrationEndsTheSessionAtOnce(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, heir := n.worker(), n.worker()
	w.register(fields{"instances": fields{"/a": []string{"x"}}})
	open := n.openFlow(w.session)
	a := n.post("/registry/deregister", tokenWorker, fields{"sessionId": w.session})
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.InDelta(t, 0, a.field(t, "released"), 0)
	require.Eventually(t, func() bool { return open.Err() != nil }, patience, time.Millisecond, "what is open to it is cut")
	require.Nil(t, w.listed())
	_, err := n.store.Lookup(t.Context(), "/a", "x")
	require.ErrorIs(t, err, store.ErrNotPlaced)
	heir.register(fields{"instances": fields{"/a": []string{"x"}}})
	owner, _ := n.owner("/a", "x")
	require.Equal(t, heir.session, owner)

	// Safe to repeat, and for sessions that nobody knows.
	for _, session := range []string{w.session, "unknown"} {
		n.store.called()
		require.Equal(t, http.StatusOK, n.post("/registry/deregister", tokenWorker, fields{"sessionId": session}).status)
		require.Contains(t, n.store.called(), "Deregister", "an earlier attempt may have done half of it")
	}
	require.NotNil(t, heir.listed())
	for _, bad := range []any{fields{}, fields{"sessionId": 1}, fields{"sessionId": nil}, []fields{{"sessionId": "x"}}} {
		n.post("/registry/deregister", tokenWorker, bad).requireRefusal(t, http.StatusBadRequest, "")
	}
	for _, op := range []string{"Session", "Deregister"} {
		n.store.fail(errStoreTest, op)
		n.post("/registry/deregister", tokenWorker, fields{"sessionId": "not seen before"}).
			requireRefusal(t, http.StatusServiceUnavailable, "store")
	}
}
