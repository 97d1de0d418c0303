// Only types are taken from it.
'use strict';
