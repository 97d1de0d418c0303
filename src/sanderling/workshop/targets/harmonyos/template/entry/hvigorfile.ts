import { hapTasks } from '@ohos/hvigor-ohos-plugin';

export default { system: hapTasks, plugins: [] };
