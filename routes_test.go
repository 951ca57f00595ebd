package pinboard

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func id(n int) instance { return instance{"/a", strconv.Itoa(n)} }

func TestARouteIsRememberedUntilItIsDropped(t *testing.T) {
	t.Parallel()
	var m routeMemory
	require.Nil(t, m.get(id(1)))
	m.put(id(1), route{epoch: 1})
	m.put(id(2), route{epoch: 2})
	m.put(id(1), route{epoch: 3})
	got := m.get(id(1))
	require.NotNil(t, got)
	require.EqualValues(t, 3, got.epoch)
	m.drop(id(1))
	require.Nil(t, m.get(id(1)))
	require.NotNil(t, m.get(id(2)))
}

func TestRoutesInUseOutliveThoseThatAreNot(t *testing.T) {
	t.Parallel()
	var m routeMemory
	const count = 4 * maxRoutes
	most := 0
	for n := range count {
		m.put(id(n), route{})
		if n%1000 == 0 {
			m.put(id(-1), route{epoch: int64(n)}) // in use
		}
		most = max(most, len(m.young)+len(m.old))
	}
	require.LessOrEqual(t, most, 2*maxRoutes)
	got := m.get(id(-1))
	require.NotNil(t, got)
	require.EqualValues(t, count-1000, got.epoch, "the newest")
	require.Nil(t, m.get(id(0)))
	// Also what lies in the old generation is dropped for good.
	old := id(count - maxRoutes)
	require.NotNil(t, m.get(old))
	m.drop(old)
	require.Nil(t, m.get(old))
}
