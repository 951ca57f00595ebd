package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestADisplacedSessionIsRememberedForAnHourPastItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open()
		register(t, s, "old", "a")
		_, err := s.Register(t.Context(), store.Registration{
			SessionID: "new", ClientID: "b", Secret: wire.NewSecret("secret"), Namespaces: []string{"/counters"},
			AdvertiseURL: "http://b", Epoch: 1,
		})
		require.NoError(t, err)
		told := func() bool {
			t.Helper()
			_, _, err := s.Sweep(t.Context())
			require.NoError(t, err)
			_, err = s.Heartbeat(t.Context(), store.Beat{SessionID: "old"})
			require.ErrorIs(t, err, store.ErrNoSession)
			_, superseded := errors.AsType[*store.Superseded](err)
			return superseded
		}
		time.Sleep(lease + store.SupersededMemory - 1)
		require.True(t, told())
		time.Sleep(time.Nanosecond)
		require.False(t, told())
	})
}
