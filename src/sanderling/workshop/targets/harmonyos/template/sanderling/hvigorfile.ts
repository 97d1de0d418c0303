import { harTasks } from '@ohos/hvigor-ohos-plugin';

export default { system: harTasks, plugins: [] };
